"""Shamir's secret sharing of 32-byte secrets, over the prime field of 65,521 elements.

A secret is split into 18 limbs of 15 bits, each of which is the constant term of a random
polynomial. The prime is the largest below 2^16: a share's limb is then exactly two bytes, and a
sum of thousands of products stays below 2^53, so one product of float64 matrices evaluates all
polynomials at all points exactly.

Source: Shamir, "How to share a secret" (1979).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ....errors import SecureAggregationError
from ....randomness.entropy import Entropy

__all__ = ["POINTS_MAX", "SECRET_BYTES", "SHARE_BYTES", "combine", "evaluate", "split"]

PRIME = 65_521
LIMB_BITS = 15
LIMBS = 18
SECRET_BYTES = 32
SHARE_BYTES = 2 * LIMBS
POINTS_MAX = PRIME - 1

Field = NDArray[np.int64]


def split(secret: bytes, *, points: Sequence[int], threshold: int, entropy: Entropy) -> list[bytes]:
    """Return a share of `secret` for each point; any `threshold` of them recover it.

    Guarantees: fewer shares reveal nothing about the secret. Work and memory do not depend on the
        secret's value.
    """
    assert len(secret) == SECRET_BYTES and 1 <= threshold <= len(points)
    assert len(set(points)) == len(points) and min(points) >= 1 and max(points) <= POINTS_MAX
    limbs = np.zeros(LIMBS * LIMB_BITS, np.int64)
    limbs[: 8 * SECRET_BYTES] = np.unpackbits(np.frombuffer(secret, np.uint8), bitorder="little")
    constants = limbs.reshape(LIMBS, LIMB_BITS) @ (1 << np.arange(LIMB_BITS))
    others = _uniform((threshold - 1) * LIMBS, entropy).reshape(threshold - 1, LIMBS)
    values = evaluate(np.vstack([constants, others]), tuple(points))
    return [row.tobytes() for row in values.astype("<u2")]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of exactly `threshold` shares, given by their points.

    Shamir's scheme does not detect a wrong share: the caller verifies the secret.

    Raises:
        SecureAggregationError: the shares do not give a 32-byte secret.
    """
    points = tuple(sorted(shares))
    rows = np.array([np.frombuffer(shares[point], "<u2") for point in points], np.float64)
    limbs = np.remainder(_lagrange_at_zero(points) @ rows, PRIME).astype(np.int64)
    bits = (limbs[:, None] >> np.arange(LIMB_BITS + 1)) & 1
    row = bits[:, :LIMB_BITS].reshape(-1)
    if bits[:, LIMB_BITS].any() or row[8 * SECRET_BYTES :].any():
        raise SecureAggregationError("the shares do not belong to one secret")
    return np.packbits(row[: 8 * SECRET_BYTES].astype(np.uint8), bitorder="little").tobytes()


def evaluate(coefficients: Field, points: tuple[int, ...], prime: int = PRIME) -> Field:
    """Return polynomials' values at points.

    Shapes: coefficients (degree + 1, polynomials), constant terms first; result
        (points, polynomials).
    """
    powers = _powers(points, len(coefficients), prime)
    values = powers @ coefficients.astype(np.float64)  # exact: below 2^32 * degree < 2^53
    return np.remainder(values, prime).astype(np.int64)


@lru_cache(maxsize=2)  # on the complete graph all clients use the same points
def _powers(points: tuple[int, ...], count: int, prime: int) -> NDArray[np.float64]:
    """Return the powers 0 to `count` - 1 of each point, one row per point."""
    base, power = np.array(points, np.int64), np.ones(len(points), np.int64)
    powers = np.empty((len(points), count))
    for exponent in range(count):
        powers[:, exponent] = power
        power = power * base % prime
    return powers


@lru_cache(maxsize=256)
def _lagrange_at_zero(points: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the Lagrange coefficients of the points' values for the value at zero."""
    row = np.array(points, np.int64)
    above, below = np.ones(len(row), np.int64), np.ones(len(row), np.int64)
    for place, point in enumerate(points):
        difference = (point - row) % PRIME
        difference[place] = 1  # omits the point itself
        below = below * difference % PRIME
        above = above * np.where(np.arange(len(row)) == place, 1, point) % PRIME
    factors = [
        int(top) * pow(int(bottom), -1, PRIME) % PRIME
        for top, bottom in zip(above, below, strict=True)
    ]
    return np.array(factors, np.float64)


def _uniform(count: int, entropy: Entropy) -> Field:
    """Return exactly uniform elements of the field, by rejection sampling."""
    drawn = np.empty(0, np.uint16)
    while len(drawn) < count:
        more = np.frombuffer(entropy(2 * (count - len(drawn) + 8)), "<u2")
        drawn = np.concatenate([drawn, more[more < PRIME]])
    return drawn[:count].astype(np.int64)
