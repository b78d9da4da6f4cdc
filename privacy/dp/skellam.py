"""Skellam noise: whole numbers, whose sums are Skellam again.

It is the difference of two Poisson variables with mean variance / 2 each. Drawn by inversion, from
a table of the modified Bessel functions exp(-v) I_k(v), by Miller's downward recurrence.

Guarantees: what is drawn differs from the distribution by less than 2^-40 in total variation.

Source: Agarwal, Kairouz, Liu, "The Skellam mechanism for differentially private federated
learning" (2021), definition 3.1 and theorem 3.5.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...strategies.bounds import require_number
from .inversion import SPREAD, STDDEV_MAX, by_inversion, table_of

__all__ = ["skellam", "skellam_renyi", "skellam_tail"]

RESCALE = 1e250


def skellam(variance: float, words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return a value for each of these uniform words.

    Raises:
        ConfigError: the variance is not in (0, STDDEV_MAX^2].
    """
    require_number("variance", variance, above=0, at_most=STDDEV_MAX**2)
    return by_inversion(_table(variance), words)


def skellam_tail(variance: float, log_odds: float) -> float:
    """Return what the noise exceeds with a probability of at most 2 exp(-log_odds).

    Source: Bernstein's inequality, log E exp(tX) = variance (cosh t - 1).
    """
    return log_odds / 3 + math.sqrt(log_odds**2 / 9 + 2 * variance * log_odds)


def skellam_renyi(order: int, *, norm_l2: float, norm_l1: float, variance: float) -> float:
    """Return the Renyi divergence of an order > 1 between sums with and without one vector.

    Source: Agarwal et al. (2021), theorem 3.5.
    """
    linear = order * norm_l2**2 / (2 * variance)
    exact = ((2 * order - 1) * norm_l2**2 + 6 * norm_l1) / (4 * variance**2)
    return linear + min(exact, 3 * norm_l1 / (2 * variance))


@lru_cache(maxsize=4)
def _table(variance: float) -> NDArray[np.uint64]:
    count = int(SPREAD * math.sqrt(variance)) + 40
    start = count + 20 + int(math.sqrt(variance))
    values = np.zeros(count)
    above, here = 0.0, 1e-250
    for order in range(start, 0, -1):
        above, here = here, above + 2 * order / variance * here
        if here > RESCALE:
            values /= RESCALE
            above, here = above / RESCALE, here / RESCALE
        if order <= count:
            values[order - 1] = here
    return table_of(values)
