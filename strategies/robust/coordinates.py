"""Rules for each coordinate alone: the median, the trimmed mean, and the mean around the median.

Shapes: a rule takes the values of n rows, sorted along the last axis, shape (values, n), and
returns shape (values,).
Sources: Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning: towards optimal
statistical rates" (2018): the median, definition 1, and the trimmed mean, definition 2;
El Mhamdi, Guerraoui, Rouault, "The hidden vulnerability of distributed learning in Byzantium"
(2018), section 4: `mean_around_median`, Bulyan's second step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Reduction", "mean_around_median", "median", "trimmed_mean"]

Values = NDArray[Any]
Reduction = Callable[[Values], Values]


def median(ordered: Values) -> Values:
    """Return the middle value, or the mean of the two."""
    low, high = (ordered.shape[1] - 1) // 2, ordered.shape[1] // 2
    if low == high:
        return ordered[:, low].astype(np.float64)
    return np.asarray((ordered[:, low].astype(np.float64) + ordered[:, high]) / 2.0)


def trimmed_mean(byzantine: int) -> Reduction:
    """Leave out the f largest and the f smallest values, and take the mean of the others."""

    def reduce(ordered: Values) -> Values:
        kept = ordered[:, byzantine : ordered.shape[1] - byzantine]
        return np.asarray(kept.mean(axis=1, dtype=np.float64))

    return reduce


def mean_around_median(byzantine: int) -> Reduction:
    """Return the mean of all but the 2 f values that are furthest from the median.

    Those that stay are neighbours in the order of values: each of the 2 f + 1 runs of them is
    tried, and the one whose ends are nearest to the median is taken.
    """

    def reduce(ordered: Values) -> Values:
        rows = np.ascontiguousarray(ordered.T, np.float64)  # a run's ends are rows in memory
        kept, middle = len(rows) - 2 * byzantine, median(ordered)
        best, begin = np.full(len(middle), np.inf), np.zeros(len(middle), np.intp)
        below, reach = np.empty_like(best), np.empty_like(best)
        for start in range(2 * byzantine + 1):
            np.subtract(middle, rows[start], out=below)
            np.subtract(rows[start + kept - 1], middle, out=reach)
            np.maximum(below, reach, out=reach)
            np.copyto(begin, start, where=reach < best)
            np.minimum(best, reach, out=best)
        chosen = begin + np.arange(kept)[:, None]  # no running sums: they would keep what an
        return np.asarray(np.take_along_axis(rows, chosen, axis=0).mean(axis=0))  # outlier did

    return reduce
