"""A public random rotation: it spreads a vector's norm over all of its values.

Random signs, then the Walsh-Hadamard transform, divided by sqrt(d) so that norms are preserved. A
value of the rotated vector is sub-Gaussian with variance |x|^2 / d, for every vector x.

Source: Kairouz, Liu, Steinke, "The distributed discrete Gaussian mechanism for federated learning
with secure aggregation" (2021), section 4 (flattening).
"""

from __future__ import annotations

import math
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

__all__ = ["padded", "rotate", "rotate_back"]

Reals = NDArray[np.float64]


def padded(length: int) -> int:
    """Return the power of two that vectors are padded to."""
    return 1 << max(0, length - 1).bit_length()


def rotate(vector: Reals, seed: bytes) -> Reals:
    """Return the vector, padded with zeros and rotated by the seed.

    Shapes: (length,) to (padded(length),).
    """
    rotated = np.zeros(padded(len(vector)))
    rotated[: len(vector)] = vector
    rotated *= _signs(len(rotated), seed)
    return _transform(rotated)


def rotate_back(rotated: Reals, length: int, seed: bytes) -> Reals:
    """Return the `length` values that were rotated."""
    return (_transform(rotated.copy()) * _signs(len(rotated), seed))[:length]


def _signs(count: int, seed: bytes) -> NDArray[np.int8]:
    """Return random signs, -1 and 1, from a seed. They are public; privacy does not need them."""
    public = np.random.PCG64DXSM(int.from_bytes(sha256(seed).digest(), "big"))
    bits = np.unpackbits(np.frombuffer(np.random.Generator(public).bytes(-(-count // 8)), np.uint8))
    return 1 - 2 * bits[:count].astype(np.int8)


def _transform(values: Reals) -> Reals:
    """Transform in place: the matrix is symmetric and its own inverse."""
    width = 1
    while width < len(values):
        pairs = values.reshape(-1, 2, width)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        width *= 2
    values /= math.sqrt(len(values))
    return values
