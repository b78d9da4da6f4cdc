"""Discrete Gaussian noise: whole numbers k with probabilities in proportion to exp(-k^2 / (2 v)).

Its sums are not discrete Gaussian, but so close that their Renyi divergences are those of a
Gaussian to within 0.1 %, from a variance of about 3 per client on.

Guarantees: if the words are uniform, values have exactly these probabilities.

Sources: Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy" (2020); Kairouz,
Liu, Steinke, "The distributed discrete Gaussian mechanism for federated learning with secure
aggregation" (2021), theorem 1 with section 4 on sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

import numpy as np
from numpy.typing import NDArray

from ....strategies.algorithms.bounds import require_number
from .inversion import STDDEV_MAX, Words, by_inversion

__all__ = [
    "discrete_gaussian",
    "discrete_gaussian_renyi",
    "discrete_gaussian_tail",
    "discrete_gaussian_variance",
    "exponential",
]

SLACK = 1e-3
"""The largest share of the divergences that may result from sums not being discrete Gaussian."""


def discrete_gaussian(variance: float, count: int, words: Words) -> NDArray[np.int64]:
    """Return `count` values; `variance` is v, which is close to the variance of large noise.

    Raises:
        ConfigError: `variance` is not in (0, STDDEV_MAX^2].
    """
    require_number("variance", variance, above=0, at_most=STDDEV_MAX**2)
    return by_inversion(_DiscreteGaussian(variance), count, words)


def discrete_gaussian_tail(variance: float, log_odds: float) -> float:
    """Return a bound that the noise, or a sum with this total variance, exceeds with a probability
    of at most 2 exp(-log_odds).

    Source: it is subgaussian with its parameter, E exp(tX) <= exp(t^2 variance / 2) (Canonne et
    al. 2020, section 3).
    """
    return math.sqrt(2 * variance * log_odds)


def discrete_gaussian_renyi(
    order: float, *, norm_l2: float, variance: float, clients: int, dimension: int
) -> float:
    """Return a bound of the Renyi divergence, at an order > 1, between sums with and without one
    vector. They have `dimension` values, with noise of `clients` and the total `variance`.

    Source: Kairouz et al. (2021), theorem 1; each term of its sum over k is at most the first.
    """
    excess = 10 * (clients - 1) * math.exp(-(math.pi**2) * variance / clients)
    return order / 2 * (norm_l2**2 / variance + excess * dimension / 2)


def discrete_gaussian_variance(
    noise_multiplier: float, *, norm_l2: float, clients: int, dimension: int
) -> float:
    """Return the variance for which the divergences of a sum are at most those of a Gaussian sum
    with this noise multiplier: order / (2 noise_multiplier^2)."""
    square = noise_multiplier**2
    least = math.log(max(1.0, 5 / SLACK * clients * dimension * square)) / math.pi**2
    return max(square * norm_l2**2 / (1 - SLACK), clients * least)


@dataclass(frozen=True, slots=True)
class _DiscreteGaussian:
    """The law: the ratio of the probabilities of k and k - 1 is exp(-(2k - 1) / (2 variance))."""

    variance: float
    sides: int = 2

    def ratios(self, count: int, bits: int) -> list[int]:
        half, step = (exponential(self.variance, parts, bits) for parts in (2, 1))
        found = [half]
        for _ in range(count - 1):
            found.append(found[-1] * step >> bits)
        return found

    def reach(self, log_odds: float) -> float:
        return discrete_gaussian_tail(self.variance, log_odds)


def exponential(variance: float, parts: int, bits: int) -> int:
    """Return exp(-1 / (parts * variance)) in 2^-bits, off by less than 2 of these."""
    context = Context(prec=bits // 3 + 10, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
    exponent = context.divide(Decimal(-1), context.multiply(Decimal(parts), Decimal(variance)))
    return int(context.multiply(context.exp(exponent), Decimal(1 << bits)))
