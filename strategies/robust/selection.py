"""Rules that keep some of the updates: Krum, multi-Krum, Bulyan's first step, and MDA.

Sources: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine
tolerant gradient descent" (2017): Krum and multi-Krum; El Mhamdi, Guerraoui, Rouault, "The hidden
vulnerability of distributed learning in Byzantium" (2018), section 4: Bulyan; the same, "Distributed
momentum for Byzantine-resilient stochastic gradient descent" (2021): MDA, the subset of n - f of
the least diameter.

A row's score is its mean squared distance from the n - f - 1 rows next to it, as in Farhadkhani,
Guerraoui, Gupta, Pinot, Stephan, "Byzantine machine learning made easy by resilient averaging of
momentums" (2022), and in ByzFL; the paper of 2017 counts one neighbour fewer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .geometry import Geometry, Mixing, Reals

__all__ = ["bulyan_selection", "krum", "minimum_diameter", "multi_krum"]

Flags = NDArray[np.bool_]


def krum(byzantine: int) -> Mixing:
    """Keep the row with the least score."""

    def mix(rows: Geometry) -> Reals:
        best = int(np.argmin(scores(rows.distances_squared(), byzantine)))
        return mean_of([best], rows.count)

    return mix


def multi_krum(byzantine: int) -> Mixing:
    """Return the mean of the n - f rows with the least scores."""

    def mix(rows: Geometry) -> Reals:
        order = np.argsort(scores(rows.distances_squared(), byzantine), kind="stable")
        return mean_of(order[: rows.count - byzantine].tolist(), rows.count)

    return mix


def bulyan_selection(byzantine: int) -> Mixing:
    """Keep n - 2 f rows: what Krum keeps, again and again, each time of those that are left."""

    def mix(rows: Geometry) -> Reals:
        distances, left = rows.distances_squared(), list(range(rows.count))
        chosen = []
        for _ in range(rows.count - 2 * byzantine):
            best = int(np.argmin(scores(distances[np.ix_(left, left)], byzantine)))
            chosen.append(left.pop(best))
        return np.eye(rows.count)[sorted(chosen)]

    return mix


def minimum_diameter(byzantine: int) -> Mixing:
    """Return the mean of the n - f rows whose greatest distance is least.

    Of several such subsets it is the first in the order of rows. The search is exact: a subset
    of a given diameter is what is left when every pair further apart has lost one of its rows,
    and at most f rows may be lost, so that 2^f ways are looked at, however large n is.
    """

    def mix(rows: Geometry) -> Reals:
        distances, kept = rows.distances_squared(), rows.count - byzantine
        candidates = np.unique(distances)
        low, high = 0, len(candidates) - 1
        while low < high:
            middle = (low + high) // 2
            if _first_subset(distances > candidates[middle], kept) is None:
                low = middle + 1
            else:
                high = middle
        subset = _first_subset(distances > candidates[low], kept)
        assert subset is not None, "all rows are within the greatest distance"
        return mean_of(subset, rows.count)

    return mix


def scores(distances_squared: Reals, byzantine: int) -> Reals:
    """Return every row's mean squared distance from its neighbours."""
    neighbours = max(1, len(distances_squared) - byzantine - 1)
    near = np.sort(distances_squared, axis=1)[:, 1 : 1 + neighbours]
    return near.mean(axis=1) if near.size else np.zeros(len(distances_squared))


def mean_of(chosen: Sequence[int], count: int) -> Reals:
    """Return the weights of the mean of these rows."""
    weights = np.zeros((1, count))
    weights[0, list(chosen)] = 1.0 / len(chosen)
    return weights


def _first_subset(apart: Flags, size: int) -> list[int] | None:
    """Return the first `size` rows, in their order, of which no two are apart; None if none are."""
    return _extended([], np.ones(len(apart), bool), 0, apart, size)


def _extended(
    kept: list[int], alive: Flags, start: int, apart: Flags, size: int
) -> list[int] | None:
    """Return `kept`, made up to `size` rows from those alive at `start` or later."""
    for row in range(start, len(apart)):
        if len(kept) == size:
            return kept
        if not alive[row]:
            continue
        if len(kept) + np.count_nonzero(alive[row:]) < size:
            return None
        lost = alive & apart[row]
        if lost.any():  # keep this row and lose those, or lose this one
            found = _extended([*kept, row], alive & ~lost, row + 1, apart, size)
            if found is not None:
                return found
            alive = alive.copy()
            alive[row] = False
        else:
            kept = [*kept, row]
    return kept if len(kept) == size else None
