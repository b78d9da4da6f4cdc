"""Discrete Gaussian noise: whole numbers k with probabilities in proportion to exp(-k^2 / (2 v)).

Sums of it are not of the same kind, but so near to it that, from a variance of about 3 a client on,
their Renyi divergences are a Gaussian's to within a thousandth.

Guarantees: what is drawn differs from the distribution by less than 2^-40 in total variation.

Sources: Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy" (2020); Kairouz,
Liu, Steinke, "The distributed discrete Gaussian mechanism for federated learning with secure
aggregation" (2021), theorem 1 with section 4 on sums.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...strategies.bounds import require_number
from .inversion import SPREAD, STDDEV_MAX, by_inversion, table_of

__all__ = [
    "discrete_gaussian",
    "discrete_gaussian_renyi",
    "discrete_gaussian_tail",
    "discrete_gaussian_variance",
]

SLACK = 1e-3
"""What part of the divergences may come from sums' not being discrete Gaussian themselves."""


def discrete_gaussian(variance: float, words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return a value for each of these uniform words; `variance` is v, and that of large noise.

    Raises:
        ConfigError: it is not in (0, STDDEV_MAX^2].
    """
    require_number("variance", variance, above=0, at_most=STDDEV_MAX**2)
    return by_inversion(_table(variance), words)


def discrete_gaussian_tail(variance: float, log_odds: float) -> float:
    """Return what the noise, or a sum with this total variance, exceeds with a probability of at
    most 2 exp(-log_odds).

    Source: it is subgaussian with its parameter, E exp(tX) <= exp(t^2 variance / 2) (Canonne et
    al. 2020, section 3).
    """
    return math.sqrt(2 * variance * log_odds)


def discrete_gaussian_renyi(
    order: float, *, norm_l2: float, variance: float, clients: int, dimension: int
) -> float:
    """Return a bound of the Renyi divergence of an order > 1 between sums with and without one
    vector, each of `dimension` values with the noise of `clients`, `variance` in all.

    Source: Kairouz et al. (2021), theorem 1; of its sum over k every term is at most the first.
    """
    excess = 10 * (clients - 1) * math.exp(-(math.pi**2) * variance / clients)
    return order / 2 * (norm_l2**2 / variance + excess * dimension / 2)


def discrete_gaussian_variance(
    noise_multiplier: float, *, norm_l2: float, clients: int, dimension: int
) -> float:
    """Return the variance of a sum for which its divergences are at most a Gaussian one's with this
    noise multiplier: order / (2 noise_multiplier^2)."""
    square = noise_multiplier**2
    least = math.log(max(1.0, 5 / SLACK * clients * dimension * square)) / math.pi**2
    return max(square * norm_l2**2 / (1 - SLACK), clients * least)


@lru_cache(maxsize=4)
def _table(variance: float) -> NDArray[np.uint64]:
    places = np.arange(int(SPREAD * math.sqrt(variance)) + 40, dtype=np.float64)
    return table_of(np.exp(-(places**2) / (2 * variance)))
