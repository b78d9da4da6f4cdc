"""Gaussian and Laplace noise on a grid, with exactly the rounded distributions.

A draw is floor(2^BITS * y), of a real y with mean 0: standard normal, or Laplace of scale 1. Adding
it to whole numbers equals adding y and rounding down, so it is exactly as private as noise of real
numbers, and it does not depend on the rounding of floats.

y = +-(k + x): k is a whole number with probability proportional to exp(-k^2 / 2), or exp(-k) for
Laplace; x in [0, 1) is accepted with probability exp(-x (2k + x) / 2), or exp(-x). Comparisons are
bit by bit: 64 bits nearly always suffice, else more are drawn.

Guarantees: if the words are uniform, values have exactly the probabilities of the law.

Source: Karney, "Sampling exactly from the normal distribution" (2016), algorithm N; Mironov, "On
significance of the least significant bits for differential privacy" (2012), on why.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .discrete_gaussian import discrete_gaussian_tail, exponential
from .inversion import Words, magnitudes

__all__ = ["BITS", "Kind", "rounded_noise"]

Kind = Literal["gaussian", "laplace"]
BITS = 32
"""The fractional bits of a value."""
WORD_BITS = 64
UNSURE = 2.0**-40
"""Probabilities closer than this are compared exactly: float64 has 12 bits more."""
BLOCK = 1 << 15
KEPT = 0.6
"""A lower bound of the acceptance rate, for both kinds."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """The distribution of k."""

    kind: Kind
    sides: int = 1

    def ratios(self, count: int, bits: int) -> list[int]:
        if self.kind == "laplace":
            return [exponential(1.0, 1, bits)] * count
        found, step = [exponential(1.0, 2, bits)], exponential(1.0, 1, bits)
        for _ in range(count - 1):
            found.append(found[-1] * step >> bits)
        return found

    def reach(self, log_odds: float) -> float:
        return log_odds + 1 if self.kind == "laplace" else discrete_gaussian_tail(1.0, log_odds + 1)


def rounded_noise(kind: Kind, count: int, words: Words) -> NDArray[np.int64]:
    """Return `count` values, in units of 2^-BITS."""
    values, done = np.empty(count, np.int64), 0
    while done < count:
        wanted = min(BLOCK, int((count - done) / KEPT) + 16)
        made = _proposed(kind, wanted, words)[: count - done]
        values[done : done + len(made)] = made
        done += len(made)
    return values


def _proposed(kind: Kind, count: int, words: Words) -> NDArray[np.int64]:
    """Return the accepted values of `count` proposals."""
    first, fractions, bits = words(3 * count).reshape(3, count)
    whole = magnitudes(_Whole(kind), first >> np.uint64(1), words)
    x = fractions * 2.0**-WORD_BITS
    exponent = x if kind == "laplace" else x * (whole + 0.5 * x)
    above = np.exp(-exponent)
    above -= bits * 2.0**-WORD_BITS
    accepted = above > 0
    for place in np.flatnonzero(np.abs(above) < UNSURE):
        accepted[place] = _is_accepted(
            kind, int(whole[place]), int(fractions[place]), int(bits[place]), words
        )
    magnitude = (whole << BITS) + (fractions >> np.uint64(WORD_BITS - BITS)).view(np.int64)
    # -(m + x) with 0 < x < 1 is rounded down to -m - 1, which is ~m
    signs = -(first & np.uint64(1)).view(np.int64)
    values: NDArray[np.int64] = magnitude ^ signs
    return values.compress(accepted)


def _is_accepted(kind: Kind, whole: int, fraction: int, drawn: int, words: Words) -> bool:
    """Return whether a uniform number is below the probability, with as many bits as needed."""
    bits = WORD_BITS
    while True:
        low, high = (_probability(kind, whole, fraction + more, bits) for more in (1, 0))
        if Decimal(drawn + 1) <= low[0]:
            return True
        if Decimal(drawn) >= high[1]:
            return False
        more = words(2)
        fraction = fraction << WORD_BITS | int(more[0])
        drawn = drawn << WORD_BITS | int(more[1])
        bits += WORD_BITS


def _probability(kind: Kind, whole: int, fraction: int, bits: int) -> tuple[Decimal, Decimal]:
    """Return bounds of the probability that x = fraction / 2^bits is accepted, in 2^-bits."""
    unit = 1 << bits
    numerator = (
        2 * fraction * unit if kind == "laplace" else fraction * (2 * whole * unit + fraction)
    )
    digits = bits + 20
    exact = Context(prec=4 * digits)
    exponent = exact.divide(Decimal(-numerator), Decimal(2 * unit * unit))  # of powers of 2: exact
    found = exact.multiply(Context(prec=digits).exp(exponent), Decimal(unit))
    least = exact.multiply(found, exact.subtract(Decimal(1), Decimal(10) ** (2 - digits)))
    most = exact.multiply(found, exact.add(Decimal(1), Decimal(10) ** (2 - digits)))
    rounded = (
        Context(prec=digits, rounding=way).plus(each)
        for way, each in ((ROUND_FLOOR, least), (ROUND_CEILING, most))
    )
    low, high = rounded
    return low, high
