"""Gaussian and Laplace noise on a grid, without any distance from their distributions.

What is drawn is floor(2^BITS * y), of a real y with mean 0: standard normal, or Laplace of scale 1. Added to
whole numbers it is what rounding would make of them after y was added, so it is exactly as private as
noise of real numbers; and it does not depend on how floats are rounded.

y = +-(k + x): k is a whole number with a probability in proportion to exp(-k^2 / 2), for Laplace exp(-k);
x in [0, 1) is kept with the probability exp(-x (2k + x) / 2), for Laplace exp(-x). All are compared bit by
bit: 64 bits decide nearly always, else more are made until they do.

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
"""Of a value behind the point."""
WORD_BITS = 64
UNSURE = 2.0**-40
"""Probabilities so near to each other are compared exactly: float64 has 12 bits more."""
BLOCK = 1 << 15
KEPT = 0.6
"""Less than what is kept of what is drawn: of both kinds."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """The law of k."""

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
    """Return so many values, in 2^-BITS."""
    values, done = np.empty(count, np.int64), 0
    while done < count:
        wanted = min(BLOCK, int((count - done) / KEPT) + 16)
        made = _proposed(kind, wanted, words)[: count - done]
        values[done : done + len(made)] = made
        done += len(made)
    return values


def _proposed(kind: Kind, count: int, words: Words) -> NDArray[np.int64]:
    """Return what is kept of so many proposals."""
    first, fractions, coins = words(3 * count).reshape(3, count)
    whole = magnitudes(_Whole(kind), first >> np.uint64(1), words)
    x = fractions * 2.0**-WORD_BITS
    exponent = x if kind == "laplace" else x * (whole + 0.5 * x)
    above = np.exp(-exponent)
    above -= coins * 2.0**-WORD_BITS
    kept = above > 0
    for place in np.flatnonzero(np.abs(above) < UNSURE):
        kept[place] = _is_kept(
            kind, int(whole[place]), int(fractions[place]), int(coins[place]), words
        )
    magnitude = (whole << BITS) + (fractions >> np.uint64(WORD_BITS - BITS)).view(np.int64)
    # -(m + something less than 1) is rounded down to -m - 1, which is ~m
    signs = -(first & np.uint64(1)).view(np.int64)
    values: NDArray[np.int64] = magnitude ^ signs
    return values.compress(kept)


def _is_kept(kind: Kind, whole: int, fraction: int, coin: int, words: Words) -> bool:
    """Return whether a coin is below the probability, with as many bits of both as it takes."""
    bits = WORD_BITS
    while True:
        low, high = (_probability(kind, whole, fraction + more, bits) for more in (1, 0))
        if Decimal(coin + 1) <= low[0]:
            return True
        if Decimal(coin) >= high[1]:
            return False
        more = words(2)
        fraction = fraction << WORD_BITS | int(more[0])
        coin = coin << WORD_BITS | int(more[1])
        bits += WORD_BITS


def _probability(kind: Kind, whole: int, fraction: int, bits: int) -> tuple[Decimal, Decimal]:
    """Return bounds of the probability with which x = fraction / 2^bits is kept, in 2^-bits."""
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
