"""Skellam noise: whole numbers, whose sums are Skellam noise too.

It is the difference of two Poisson variables with mean variance / 2 each: k has the probability
exp(-v) I_k(v), with modified Bessel functions I_k and the variance v.

Guarantees: if the words are uniform, values have exactly these probabilities.

Source: Agarwal, Kairouz, Liu, "The Skellam mechanism for differentially private federated
learning" (2021), definition 3.1 and theorem 3.5; NIST Digital Library of Mathematical Functions,
10.29.1 (recurrence) and 10.33.1 (continued fraction), of I.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....strategies.algorithms.bounds import require_number
from .inversion import STDDEV_MAX, Words, by_inversion

__all__ = ["skellam", "skellam_renyi", "skellam_tail"]


def skellam(variance: float, count: int, words: Words) -> NDArray[np.int64]:
    """Return `count` values.

    Raises:
        ConfigError: the variance is not in (0, STDDEV_MAX^2].
    """
    require_number("variance", variance, above=0, at_most=STDDEV_MAX**2)
    return by_inversion(_Skellam(variance), count, words)


def skellam_tail(variance: float, log_odds: float) -> float:
    """Return a bound that the noise exceeds with a probability of at most 2 exp(-log_odds).

    Source: Bernstein's inequality, log E exp(tX) = variance (cosh t - 1).
    """
    return log_odds / 3 + math.sqrt(log_odds**2 / 9 + 2 * variance * log_odds)


def skellam_renyi(order: int, *, norm_l2: float, norm_l1: float, variance: float) -> float:
    """Return the Renyi divergence, at an order > 1, between sums with and without one vector.

    Source: Agarwal et al. (2021), theorem 3.5.
    """
    linear = order * norm_l2**2 / (2 * variance)
    exact = ((2 * order - 1) * norm_l2**2 + 6 * norm_l1) / (4 * variance**2)
    return linear + min(exact, 3 * norm_l1 / (2 * variance))


@dataclass(frozen=True, slots=True)
class _Skellam:
    """The distribution, by the ratios of Bessel functions r_k = 1 / (2k / v + r_(k+1)), for
    descending k."""

    variance: float
    sides: int = 2

    def ratios(self, count: int, bits: int) -> list[int]:
        above = count
        while (ratio := self._between(above := 2 * above - above // 2, count, bits)) is None:
            pass
        found, unit = [0] * count, 1 << 2 * bits
        for order, term in zip(range(count, 0, -1), self._terms(count, 0, bits), strict=True):
            ratio = unit // (term + ratio)
            found[order - 1] = ratio
        return found

    def _between(self, above: int, count: int, bits: int) -> int | None:
        """Return r_(count + 1) to within `count` units of 2^-bits, None if that needs r_(above + 1).

        r_(above + 1) is between 0 and 1, and every step down narrows the bounds, apart from rounding.
        """
        low, high, unit = 0, 1 << bits, 1 << 2 * bits
        for term in self._terms(above, count, bits):
            low, high = unit // (term + 1 + high), unit // (term + low) + 1
        return low if high - low <= count else None

    def _terms(self, start: int, stop: int, bits: int) -> Iterator[int]:
        """Return 2k / v for k from `start` down to `stop` + 1."""
        numerator, denominator = self.variance.as_integer_ratio()
        unit = 2 * denominator << bits
        return (order * unit // numerator for order in range(start, stop, -1))

    def reach(self, log_odds: float) -> float:
        return skellam_tail(self.variance, log_odds)
