"""Real vectors as noisy whole numbers modulo 2^bits: their sum is differentially private.

A client's vector is clipped to an L2 norm, rotated, scaled, rounded at random and given its share
of noise. What is summed under masks is private as a sum, against the server too.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import UpdateError
from ....randomness.entropy import Entropy, system_entropy
from ....strategies.algorithms.bounds import require_choice, require_number, require_whole
from ...dp.mechanisms.hadamard import padded, rotate, rotate_back
from ...dp.mechanisms.integer_sum import LAWS, IntegerSum, Law, integer_sum
from ...dp.mechanisms.rounding import rounded_within
from .encoding import LENGTH_MAX
from .keys import KEY_BYTES
from .masks import BLOCK, Keystream, stream_buffer
from .packing import packed_bytes

__all__ = ["NoisyEncoding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyEncoding:
    """How vectors become noisy numbers.

    Attributes:
        length: values of a vector; what is summed is padded to a power of two.
        bits: of one coordinate on the wire; sums are modulo 2^bits.
        clip_norm: vectors are clipped to this L2 norm.
        noise_multiplier: standard deviation of the noise of `noisy` clients / the sensitivity.
        clients: at most so many are in a sum.
        noisy: at least so many of them are honest and in the sum.
        seed: of the rotation; public.
        law: how a client's noise is distributed.

    Guarantees: a sum with `noisy` honest clients has Renyi divergences of at most
        order / (2 noise_multiplier^2) to the same sum without one of their vectors, for every
        rotation, whatever the others add.
    Raises:
        ConfigError: sums could leave the modulus, or no such noise can be drawn.
    """

    length: int
    bits: int
    clip_norm: float
    noise_multiplier: float
    clients: int
    noisy: int
    seed: bytes
    law: Law = "skellam"

    def __post_init__(self) -> None:
        require_whole("length", self.length, at_least=1)
        require_number("length", self.length, at_most=LENGTH_MAX)
        require_number("bits", self.bits, at_least=8, at_most=32)
        require_number("clip_norm", self.clip_norm, above=0)
        require_number("noise_multiplier", self.noise_multiplier, above=0)
        require_whole("noisy", self.noisy, at_least=1)
        require_choice("noise_law", self.law, LAWS)
        assert self.grid.fits

    @property
    def grid(self) -> IntegerSum:
        """The numbers of the sum."""
        return integer_sum(
            dimension=padded(self.length),
            bits=self.bits,
            clients=self.clients,
            noisy=self.noisy,
            noise_multiplier=self.noise_multiplier,
            law=self.law,
        )

    @property
    def scale(self) -> float:
        """The factor from values to whole numbers."""
        return self.grid.clip_scaled / self.clip_norm

    @property
    def weight_max(self) -> int:
        """1: every client counts once."""
        return 1

    @property
    def numbers(self) -> int:
        """The number of coordinates of an encoded vector, with the weight."""
        return padded(self.length) + 1

    @property
    def wire_bytes(self) -> int:
        """The size of one masked vector, in bytes."""
        return packed_bytes(self.numbers, self.bits)

    def to_bytes(self) -> bytes:
        """Return bytes that differ for different encodings."""
        numbers = (self.length, self.bits, float(self.clip_norm), float(self.noise_multiplier))
        return repr((self.law, *numbers, self.clients, self.noisy, self.seed)).encode()

    def require_room(self, clients: int) -> None:
        """Check that the encoding was made for so many clients.

        Raises:
            ConfigError: it was made for fewer.
        """
        assert clients <= self.clients

    def encode(self, vector: NDArray[Any], weight: int, *, entropy: Entropy) -> NDArray[np.uint32]:
        """Return the noisy numbers modulo 2^32, then the weight, which carries no noise.

        Shapes: vector (length,) of floating point; result (numbers,).
        Guarantees: the noise follows from the operating system's entropy, whatever `entropy` is.
        Edge cases: with weight 0, all zeros: the placeholder of a vector that was sent before.
        Raises:
            UpdateError: the shape or weight is wrong, or a value is not finite.
        """
        if vector.shape != (self.length,) or vector.dtype.kind not in "fV":
            raise UpdateError(f"the vector must have shape ({self.length},), got {vector.shape}")
        if type(weight) is not int or weight not in (0, 1):
            raise UpdateError(f"the weight must be 0 or 1 in a noisy sum, got {weight!r}")
        numbers, caller_key = np.zeros(self.numbers, np.uint32), entropy(KEY_BYTES)
        numbers[-1] = weight
        if weight:
            words = _Words(sha256(caller_key + system_entropy(KEY_BYTES)).digest())
            whole = self._rounded(vector, words)
            whole += self.grid.noise(len(whole), words.words)
            numbers[:-1] = whole.astype(np.uint32)
        return numbers

    def decode(self, total: NDArray[np.uint32]) -> tuple[NDArray[np.float64], int]:
        """Return the noisy sum of the vectors, and the number of clients in it."""
        unused = np.uint32(32 - self.bits)
        signed = (total[:-1] << unused).view(np.int32) >> np.int32(unused)
        turned = rotate_back(signed.astype(np.float64), self.length, self.seed)
        return turned / self.scale, int(total[-1]) & ((1 << self.bits) - 1)

    def _rounded(self, vector: NDArray[Any], words: _Words) -> NDArray[np.int64]:
        values = vector.astype(np.float64)
        norm = float(np.linalg.norm(values))
        if not np.isfinite(norm):
            raise UpdateError("the vector has values that are not finite, or too large for a norm")
        if norm > self.clip_norm:
            values *= self.clip_norm / norm
        turned = rotate(values, self.seed) * self.scale
        grid = self.grid
        long = float(np.linalg.norm(turned))
        if long > grid.clip_scaled:  # by rounding errors of float64
            turned *= grid.clip_scaled / long
        return rounded_within(turned, grid.norm_l2, words.uniform)


class _Words:
    """Uniform random numbers, generated from a secret key."""

    def __init__(self, key: bytes) -> None:
        self._stream, self._buffer = Keystream(key), stream_buffer()

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return `count` words of 64 bits."""
        made = np.empty(2 * count, np.uint32)
        for start in range(0, len(made), BLOCK):
            part = made[start : start + BLOCK]
            part[:] = self._stream.take(len(part), self._buffer)
        return made.view(np.uint64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return `count` numbers in [0, 1)."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
