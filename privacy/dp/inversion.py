"""Symmetric whole-number noise by inversion: one 64-bit word decides a value, by a table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["SPREAD", "STDDEV_MAX", "by_inversion", "table_of"]

STDDEV_MAX = 16_384.0
"""Of one client's noise: the table has some thirty times as many entries."""
SPREAD = 14
"""How far a table reaches, in standard deviations."""

WORDS = float(1 << 64)
Table = NDArray[np.uint64]


def by_inversion(table: Table, words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return a value for each of these uniform words."""
    magnitudes = np.searchsorted(table, words >> np.uint64(1), side="right")
    return np.where(words & np.uint64(1), -magnitudes, magnitudes).astype(np.int64)


def table_of(weights: NDArray[np.float64]) -> Table:
    """Return the distribution function of the magnitude, in 2^-63, without its last value.

    `weights` are in proportion to the probabilities of 0, 1, 2 and so on.
    """
    both = np.array(weights)
    both[1:] *= 2  # both signs
    below = np.cumsum(both / both.sum())
    # zero has no sign to draw: whichever it gets, it is zero
    return np.minimum(np.rint(below[:-1] * (WORDS / 2)), WORDS / 2 - 1024).astype(np.uint64)
