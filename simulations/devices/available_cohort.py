"""Draws a round's cohort among the clients that are there, without asking after all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ...randomness.seeds import derive
from ...strategies.rounds.cohort import Ranking

__all__ = ["draw_available"]

Ids = NDArray[np.integer]

CANDIDATES_MAX = 1 << 16
"""So many clients at most are looked at in one pass over arrays."""


def draw_available(
    count: int,
    available: Callable[[Ids], NDArray[np.bool_]],
    *,
    cohort: float,
    at_least: int,
    seed: int,
    round_number: int,
) -> list[int]:
    """Draw among those of the clients 1 to `count` that are available, ascending.

    The ranks are those of `draw_cohort`: where everybody is there, the cohort is the same. Clients
    are asked after in the order of their ranks, until there are enough.

    Units: `cohort` as a number of clients is that many of those that are there. As a fraction, it
        is the chance that each of them is drawn, so that nobody has to know how many there are.
    Edge cases: there are fewer than `at_least` if fewer are there; only then, or for fewer than
        `cohort`, is every client asked after.
    """
    reach = 0 if isinstance(cohort, int) else int(count * cohort + 1e-9)
    enough = max(cohort, at_least) if isinstance(cohort, int) else at_least
    found: list[int] = []
    seen = 0
    seed = derive(seed, "cohort", round_number)
    for ids in _by_rank(count, seed, batch=min(2 * max(reach, enough), CANDIDATES_MAX)):
        there = available(ids)
        within = np.arange(seen, seen + len(ids)) < reach
        lacking = len(found) + np.cumsum(there) <= enough
        found += ids[there & (within | lacking)].tolist()
        seen += len(ids)
        if seen >= reach and len(found) >= enough:
            break
    return sorted(found)


def _by_rank(count: int, seed: int, *, batch: int) -> Iterator[Ids]:
    """Yield all clients, those with the lowest ranks first."""
    ranking = Ranking(count, seed)
    for start in range(0, int(ranking.mask) + 1, batch):
        ranks = np.arange(start, start + batch, dtype=np.uint64)
        ids = ranking.owners(ranks[ranks <= ranking.mask]).astype(np.int64)
        yield ids[(ids >= 1) & (ids <= count)]
