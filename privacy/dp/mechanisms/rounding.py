"""Rounding at random to whole numbers, with a bound on how much longer the vector becomes.

Each value is rounded up or down so that it is right on average. That may lengthen a vector, so
it is rounded again until its norm is within a bound that it meets with probability 1 - BETA: the
bound is the sensitivity, with certainty.

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
    """Return the largest L2 norm of a rounded vector whose norm was at most `norm`."""
    root = math.sqrt(dimension)
    likely = norm**2 + dimension / 4 + math.sqrt(-2 * math.log(BETA)) * (norm + root / 2)
    return min(norm + root, math.sqrt(likely))


def rounded_within(
    values: Reals, bound: float, uniform: Callable[[int], Reals]
) -> NDArray[np.int64]:
    """Return the values rounded at random, with an L2 norm of at most `bound`.

    `uniform` returns so many numbers in [0, 1).

    Guarantees: right on average but for the vectors that were thrown away.
    Edge cases: rounded towards zero after `TRIES_MAX` vectors that were too long, which happens
        with a probability below 2^-500 where `bound` is `rounded_norm`'s.
    """
    lower = np.floor(values)
    above = values - lower
    for _ in range(TRIES_MAX):
        rounded = lower + (uniform(len(values)) < above)
        if float(rounded @ rounded) <= bound * bound:
            return rounded.astype(np.int64)
    return np.trunc(values).astype(np.int64)
