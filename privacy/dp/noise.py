"""Gaussian noise that nobody can foretell: seeded anew, by the operating system, at every release.

The generator is a good one but not a cryptographic one, and noise is a float64 that is rounded to
the params' dtype: somebody who sees many exact values could in principle use either.
docs/differential-privacy.md says what follows from that.

Source: Mironov, "On significance of the least significant bits for differential privacy" (2012).
"""

from __future__ import annotations

import numpy as np

from ..entropy import Entropy

__all__ = ["SEED_BYTES", "generator_from", "generator_of"]

SEED_BYTES = 32


def generator_of(entropy: Entropy) -> np.random.Generator:
    """Return a generator that no other release has had."""
    return generator_from(entropy(SEED_BYTES))


def generator_from(seed: bytes, part: int = 0) -> np.random.Generator:
    """Return the generator of a seed, for one part of what it is for: all are independent."""
    sequence = np.random.SeedSequence(int.from_bytes(seed, "big"), spawn_key=(part,))
    return np.random.Generator(np.random.SFC64(sequence))
