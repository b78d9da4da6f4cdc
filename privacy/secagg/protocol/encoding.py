"""Encodes real vectors as whole numbers modulo 2^bits, and decodes sums of them.

A client's value x becomes round(weight * clipped x * scale), with unbiased stochastic rounding.
The weight is appended as a last coordinate, so it is masked too. Sums of all clients' numbers fit
into `bits` bits, which is checked when the plan is made; non-finite values are refused.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import ConfigError, UpdateError
from ....randomness.entropy import Entropy
from .keys import KEY_BYTES
from .masks import BLOCK, Keystream, stream_buffer
from .packing import packed_bytes

__all__ = ["LENGTH_MAX", "Encoding"]

LENGTH_MAX = 1 << 30
VALUE_BOUND_MAX = 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The encoding of vectors as whole numbers.

    Attributes:
        length: the number of values of a vector.
        bits: the bits of one coordinate on the wire; sums are modulo 2^bits.
        value_bits: the bits of one value with weight 1, with its sign.
        weight_max: the largest weight of a client; weights are whole numbers.
        value_bound: values are clipped to [-value_bound, value_bound].
    """

    length: int
    bits: int = 32
    value_bits: int = 16
    weight_max: int = 1
    value_bound: float = 1.0

    def __post_init__(self) -> None:
        bounds = {
            "length": (1, LENGTH_MAX),
            "bits": (8, 32),
            "value_bits": (2, 24),
            "weight_max": (1, 1 << 24),
        }
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ConfigError(f"{name} must be a whole number in [{least}, {most}]: {value!r}")
        if (
            type(self.value_bound) not in (int, float)
            or not 1e-30 <= self.value_bound <= VALUE_BOUND_MAX
        ):
            raise ConfigError(
                f"value_bound must be a number in [1e-30, 1e30], got {self.value_bound!r}"
            )

    @property
    def scale(self) -> float:
        """The factor from values to whole numbers, at weight 1."""
        return ((1 << (self.value_bits - 1)) - 1) / self.value_bound

    @property
    def wire_bytes(self) -> int:
        """The size of one masked vector, in bytes."""
        return packed_bytes(self.numbers, self.bits)

    @property
    def numbers(self) -> int:
        """The number of coordinates of an encoded vector, with the weight."""
        return self.length + 1

    def to_bytes(self) -> bytes:
        """Return bytes that differ for different encodings."""
        return repr(
            astuple(replace(self, value_bound=float(self.value_bound)))
        ).encode()  # 1 and 1.0 are equal

    def require_room(self, clients: int) -> None:
        """Check that no sum of so many clients overflows: n * weight_max < 2^(bits-value_bits).

        Raises:
            ConfigError: a sum could overflow.
        """
        room = 1 << max(0, self.bits - self.value_bits)
        if clients * self.weight_max >= room:
            raise ConfigError(
                f"the sum of {clients} clients of weight up to {self.weight_max} could overflow: "
                f"{clients * self.weight_max} must be < 2^(bits - value_bits) = {room}; lower "
                f"weight_max to {(room - 1) // clients}, or change bits ({self.bits}) and "
                f"value_bits ({self.value_bits})"
            )

    def encode(self, vector: NDArray[Any], weight: int, *, entropy: Entropy) -> NDArray[np.uint32]:
        """Return a vector times its weight as whole numbers modulo 2^32, followed by the weight.

        Shapes: vector (length,), of float16, bfloat16, float32 or float64; result (length + 1,).
        Guarantees: each number is the product with `scale`, rounded up or down at random from
            `entropy`, with a bias of at most 2^-22.

        Raises:
            UpdateError: the shape, dtype or weight is wrong, or a value is not finite.
        """
        self._check(vector, weight)
        numbers = np.empty(self.numbers, np.uint32)
        numbers[-1] = weight
        stream, buffer = Keystream(entropy(KEY_BYTES)), stream_buffer()
        for start in range(0, self.length, BLOCK):
            values = vector[start : start + BLOCK].astype(np.float64)
            if not np.isfinite(values).all():
                raise UpdateError(f"values {start} to {start + len(values)} are not all finite")
            np.clip(values, -self.value_bound, self.value_bound, out=values)
            values *= weight * self.scale
            values += stream.take(len(values), buffer) * 2.0**-32
            np.floor(values, out=values)
            numbers[start : start + len(values)] = values.astype(np.int64).astype(np.uint32)
        return numbers

    def decode(self, total: NDArray[np.uint32]) -> tuple[NDArray[np.float64], int]:
        """Return the weighted sum of the vectors, and the sum of the weights."""
        unused = np.uint32(32 - self.bits)
        signed = (total[:-1] << unused).view(np.int32) >> np.int32(unused)
        return signed / self.scale, int(total[-1]) & ((1 << self.bits) - 1)

    def _check(self, vector: NDArray[Any], weight: int) -> None:
        if vector.shape != (self.length,):
            raise UpdateError(f"the vector must have shape ({self.length},), got {vector.shape}")
        if vector.dtype.kind != "f" and vector.dtype.name != "bfloat16":
            raise UpdateError(f"the vector must be floating-point, got {vector.dtype.name}")
        if type(weight) is not int or not 0 <= weight <= self.weight_max:
            raise UpdateError(
                f"the weight must be a whole number in [0, {self.weight_max}], got {weight!r}"
            )
