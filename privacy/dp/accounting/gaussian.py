"""Composes Gaussian releases: epsilon in closed form, with only `math`.

Releases with noise multipliers z_1, z_2, ... are together as private as one with the multiplier
1 / mu, where mu^2 = sum of 1 / z_i^2 is their *cost*. Costs add up, also for releases that were
chosen adaptively, by earlier ones.

Source: Balle, Wang, "Improving the Gaussian mechanism for differential privacy" (2018), theorem 8;
Dong, Roth, Su, "Gaussian differential privacy" (2019), corollary 3.3 (composition).
"""

from __future__ import annotations

import math
from functools import lru_cache

from ....strategies.algorithms.bounds import require_number

__all__ = ["cost_of", "delta_of_cost", "epsilon_of_cost"]

EPSILON_MAX = 1e6
NOISE_MIN = 1e-150
"""A smaller noise multiplier counts as no noise."""
STEPS = 200


def cost_of(noise_multiplier: float) -> float:
    """Return the cost of one release: 1 / noise_multiplier^2.

    Edge cases: infinite without noise, and if the cost overflows float64.
    """
    return noise_multiplier**-2.0 if noise_multiplier > NOISE_MIN else math.inf


def delta_of_cost(cost: float, epsilon: float) -> float:
    """Return the smallest delta for which releases of this cost are (epsilon, delta)-private."""
    if cost == 0:
        return 0.0
    mu = math.sqrt(cost)
    first = _normal(-epsilon / mu + mu / 2)
    second = _normal(-epsilon / mu - mu / 2)
    exponent = epsilon + math.log(second) if second > 0 else -math.inf
    return max(0.0, first - math.exp(exponent)) if exponent < 0 else 0.0


@lru_cache(maxsize=1024)
def epsilon_of_cost(cost: float, delta: float) -> float:
    """Return the smallest epsilon for which releases of this cost are (epsilon, delta)-private.

    Edge cases: 0 if nothing was released, infinite for an infinite cost or beyond 1e6.
    """
    require_number("delta", delta, above=0, below=1)
    if math.isnan(cost):
        raise ValueError("a cost must be a number, got nan")
    if delta_of_cost(cost, 0.0) <= delta:
        return 0.0
    if not math.isfinite(cost) or delta_of_cost(cost, EPSILON_MAX) > delta:
        return math.inf
    low, high = 0.0, 1.0
    while delta_of_cost(cost, high) > delta:
        low, high = high, min(2 * high, EPSILON_MAX)
    for _ in range(STEPS):
        middle = (low + high) / 2
        if delta_of_cost(cost, middle) > delta:
            low = middle
        else:
            high = middle
        if high - low <= 1e-12 * high:
            break
    return high


def _normal(value: float) -> float:
    """Return the standard normal distribution function, accurate in the lower tail."""
    return 0.5 * math.erfc(-value / math.sqrt(2.0))
