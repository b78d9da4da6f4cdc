"""Stochastic rounding to whole numbers, with a bound on the norm of the rounded vector.

Rounding is unbiased, but may increase a vector's norm. So the vector is rounded again until its
norm is within a bound, which one rounding meets with probability 1 - BETA. The bound is the
sensitivity, with certainty.

Source: Kairouz, Liu, Steinke, "The distributed discrete Gaussian mechanism for federated learning
with secure aggregation" (2021), section 4 (conditional randomized rounding), equation 34.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["rounded_norm", "rounded_within"]

Reals = NDArray[np.float64]
BETA = math.exp(-2)
TRIES_MAX = 200


def rounded_norm(norm: float, dimension: int) -> float:
    """Return the bound on the L2 norm after rounding a vector of norm at most `norm`."""
    root = math.sqrt(dimension)
    likely = norm**2 + dimension / 4 + math.sqrt(-2 * math.log(BETA)) * (norm + root / 2)
    return min(norm + root, math.sqrt(likely))


def rounded_within(
    values: Reals, bound: float, uniform: Callable[[int], Reals]
) -> NDArray[np.int64]:
    """Return the values rounded at random, with an L2 norm of at most `bound`.

    `uniform` returns a given number of values in [0, 1).

    Guarantees: unbiased, apart from the rejection of vectors above the bound.
    Edge cases: rounded towards zero after `TRIES_MAX` rejections, which happens with a probability
        below 2^-500 if `bound` is that of `rounded_norm`.
    """
    lower = np.floor(values)
    above = values - lower
    for _ in range(TRIES_MAX):
        rounded = lower + (uniform(len(values)) < above)
        if float(rounded @ rounded) <= bound * bound:
            return rounded.astype(np.int64)
    return np.trunc(values).astype(np.int64)
