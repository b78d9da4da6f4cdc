"""Symmetric whole-number noise by inversion, without any distance from its distribution.

A uniform real number in [0, 1) decides a value: how many values F(0), F(1), ... of the magnitude's
distribution function are not above it. Its first 63 bits nearly always decide, by a table of the first
63 bits of each F(k), which are computed with whole numbers and bounded errors. Where the bits are the
same, the real number is on either side: then more bits of both are made, until they differ.

Guarantees: if the words are uniform, values have exactly the probabilities of the law.

Source: Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy" (2020), section 5, on
why it has to be exact; Devroye, "Non-uniform random variate generation" (1986), III.2, for inversion.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .parts import BLOCK

__all__ = ["STDDEV_MAX", "Law", "Words", "by_inversion", "first_bits", "magnitudes"]

STDDEV_MAX = 16_384.0
"""Of one client's noise: the table has some ten times as many entries."""
FIRST_BITS = 63
"""A word less its sign."""
MORE_BITS = 64
GUARD_BITS = 96
"""Beside those of the result, to begin with."""

Words = Callable[[int], NDArray[np.uint64]]
"""Returns so many uniform words of 64 bits."""
Table = NDArray[np.uint64]


class Law(Protocol):
    """Probabilities of whole numbers, the same for k and -k; or of those >= 0, on one `side`."""

    @property
    def sides(self) -> int: ...
    def __hash__(self) -> int: ...

    def ratios(self, count: int, bits: int) -> list[int]:
        """Return the probabilities of 1 to `count`, each divided by that of the number before it.

        Guarantees: they are less than 1 and decrease; as multiples of 2^-bits, off by no more than
            3 (count + 2) of these.
        """

    def reach(self, log_odds: float) -> float:
        """Return what is exceeded with a probability of at most 2 exp(-log_odds)."""


def by_inversion(law: Law, count: int, words: Words) -> NDArray[np.int64]:
    """Return so many values."""
    drawn = words(count)
    values = np.empty(count, np.int64)
    for start in range(0, count, BLOCK):
        block = drawn[start : start + BLOCK]
        found = magnitudes(law, block >> np.uint64(1), words)
        # zero has no sign to draw: whichever it gets, it is zero
        signs = (block & np.uint64(1)).view(np.int64)
        values[start : start + BLOCK] = (found ^ -signs) + signs
    return values


def magnitudes(law: Law, numbers: NDArray[np.uint64], words: Words) -> NDArray[np.int64]:
    """Return a magnitude for each of these uniform numbers of 63 bits."""
    table = _table(law)
    found = np.searchsorted(table, numbers, side="right")
    for place in np.flatnonzero(table[found - 1] == numbers):
        found[place] = _decided(law, int(numbers[place]), words)
    return found


def _decided(law: Law, number: int, words: Words) -> int:
    """Return the magnitude for a real number of which the first bits do not decide."""
    bits, found = FIRST_BITS, 0
    known = [number]
    while found == 0 or known[found - 1] == number:
        bits += MORE_BITS
        number = number << MORE_BITS | int(words(1)[0])
        known = first_bits(law, bits)
        found = bisect_right(known, number)
        if not found:
            break
    return found


@lru_cache(maxsize=4)
def _table(law: Law) -> Table:
    return np.array(first_bits(law, FIRST_BITS), np.uint64)


def first_bits(law: Law, bits: int) -> list[int]:
    """Return the first bits of F(0), F(1), ...: probabilities of magnitudes up to 0, 1, ..., rounded
    down to multiples of 2^-bits. The last one is 1 - 2^-bits, as all would be that follow."""
    guard = GUARD_BITS
    while (found := _first_bits(law, bits, guard)) is None:
        guard *= 2
    return found


def _first_bits(law: Law, bits: int, guard: int) -> list[int] | None:
    """Return what `first_bits` does, None if this precision does not tell.

    In multiples of 2^-(bits + guard), by induction: weights are off by no more than
    k (3 count + 8), sums by 16 (count + 2)^3.
    """
    precision, last = bits + guard, (1 << bits) - 1
    count = math.ceil(law.reach((bits + guard // 2) * math.log(2))) + 2
    *ratios, beyond = law.ratios(count + 1, precision)
    one = weight = total = 1 << precision
    sums = [total]
    for ratio in ratios:
        weight = weight * ratio >> precision
        total += law.sides * weight
        sums.append(total)
    off = 16 * (count + 2) ** 3
    left_out = 2 * (weight + off) * (beyond + off) // (one - beyond - off) + 1  # geometric, at most
    unsure = (2 * off + left_out) << bits
    found: list[int] = []
    for each in sums:
        whole, rest = divmod(each << bits, total)
        if whole >= last:  # never 1: there is always more
            return [*found, last] if whole > last or rest > unsure else None
        if not unsure < rest < total - unsure:
            return None
        found.append(whole)
    return None
