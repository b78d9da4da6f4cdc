"""Unpredictable Gaussian noise: every release has a new seed from the operating system.

The generator is statistically good but not cryptographic, and noise is a float64 that is rounded
to the params' dtype: an attacker who sees many exact values could in principle exploit either.
docs/differential-privacy.md discusses the consequences.

Source: Mironov, "On significance of the least significant bits for differential privacy" (2012).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray

from ....randomness.entropy import Entropy

__all__ = ["SEED_BYTES", "generator_from", "generator_of"]

SEED_BYTES = 32


def generator_of(entropy: Entropy) -> np.random.Generator:
    """Return a generator with a new seed, which no other release uses."""
    return generator_from(entropy(SEED_BYTES))


def generator_from(seed: bytes, part: int = 0) -> np.random.Generator:
    """Return the generator of one part of a seed's values; generators of parts are independent."""
    hashed = _HashedSeed(seed, part)
    return np.random.Generator(np.random.SFC64(hashed))  # type: ignore[arg-type]  # numpy's stub


@dataclass(frozen=True, slots=True)
class _HashedSeed(ISeedSequence):
    """Seeds a generator with a hash of `seed` and `part`: SHAKE-256, of any length.

    Source: NIST FIPS 202 (2015).
    """

    seed: bytes
    part: int

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[Any]:
        """Return `n_words` words of this dtype."""
        hashed = hashlib.shake_256(self.part.to_bytes(8, "big") + self.seed)
        return np.frombuffer(hashed.digest(n_words * np.dtype(dtype).itemsize), dtype)
