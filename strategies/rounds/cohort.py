"""Who takes part in a round: waiting for enough clients, and drawing the cohort among them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import cast

import numpy as np
from flwr.serverapp import Grid

from ...randomness.seeds import Words, derive, spread
from .grids import is_stopping, wait_without_polling, waits_for_replies

__all__ = [
    "draw_cohort",
    "draw_idle",
    "size_of_cohort",
    "wait_for_clients",
    "wait_for_replies",
    "wait_for_separated",
]

POLL_S = 0.2


def draw_cohort(
    clients: Iterable[int], *, cohort: float, at_least: int, seed: int, round_number: int
) -> list[int]:
    """Draw a round's cohort among the connected clients, in canonical (ascending) order.

    Every client has a rank that (seed, round, client) decides, and the lowest ones take part. So
    a client that comes or goes changes the cohort by at most that one client, as long as the
    largest node id has as many binary digits.

    Units: `cohort` is a fraction if it is a float, a number of clients if it is an int.
    Edge cases: `at_least` prevails over a smaller cohort, and the clients there are over both.
        A `range` of clients is never gone through: the time depends on the cohort alone.
    Guarantees: depends on the set of clients only, not on their order.
    """
    if not isinstance(clients, range):
        clients = np.unique(np.fromiter(clients, dtype=np.uint64))
    present = cast(Sequence[int], clients)
    size = size_of_cohort(len(present), cohort=cohort, at_least=at_least)
    if size < len(present):
        ranking = Ranking(int(max(present[0], present[-1])), derive(seed, "cohort", round_number))
        if isinstance(present, range):
            return sorted(_lowest_of_range(present, ranking, size))
        ids = np.asarray(present)
        return sorted(ids[np.argsort(ranking.of(ids), kind="stable")[:size]].tolist())
    return [int(client) for client in present]


def draw_idle(
    draw: Callable[[int], Sequence[int]], unwanted: Collection[int], count: int
) -> list[int]:
    """Return up to `count` clients that are not unwanted, out of the first that `draw` gives.

    `draw(size)` returns so many clients, those of a smaller size among them.
    """
    size = count
    while True:
        drawn = draw(size)
        idle = [client for client in drawn if client not in unwanted]
        if len(idle) >= count or len(drawn) < size:
            return idle
        size += count - len(idle)


def size_of_cohort(present: int, *, cohort: float, at_least: int) -> int:
    """Return how many of the clients that are there take part; see `draw_cohort`."""
    # 100 * 0.29 is 28.999...: a fraction that rounding has made smaller is meant as written
    wanted = cohort if isinstance(cohort, int) else int(present * cohort + 1e-9)
    return min(present, max(wanted, at_least))


def _lowest_of_range(present: range, ranking: Ranking, size: int) -> list[int]:
    """Return the clients with the lowest ranks: ask who has rank 0, 1, 2, ..."""
    found: list[int] = []
    start = 0
    while len(found) < size:
        ranks = np.arange(start, start + 2 * size, dtype=np.uint64)
        ids = ranking.owners(ranks[ranks <= ranking.mask])
        found += [int(id_) for id_ in ids if int(id_) in present]
        start += 2 * size
    return found[:size]


class Ranking:
    """A random permutation of the numbers with as many binary digits as the largest id.

    Rounds of adding, multiplying by an odd number and folding the upper half into the lower:
    each of them can be undone, so that it also says whose a rank is.
    """

    ROUNDS = 4

    def __init__(self, largest: int, seed: int) -> None:
        bits = max(1, largest.bit_length())
        words = spread(seed, np.arange(2 * self.ROUNDS)).tolist()
        self.mask = np.uint64((1 << bits) - 1)
        self._shift = np.uint64((bits + 1) // 2)
        self._terms = [np.uint64(word) for word in words[: self.ROUNDS]]
        odd = [word | 1 for word in words[self.ROUNDS :]]
        self._factors = [np.uint64(word) for word in odd]
        self._inverses = [np.uint64(pow(word, -1, 1 << 64)) for word in odd]

    def of(self, ids: Words) -> Words:
        """Return the ranks of clients."""
        for term, factor in zip(self._terms, self._factors, strict=True):
            ids = ((ids + term) * factor) & self.mask
            ids = ids ^ (ids >> self._shift)
        return ids

    def owners(self, ranks: Words) -> Words:
        """Return whose ranks these are: the inverse of `of`."""
        steps = list(zip(self._terms, self._inverses, strict=True))
        for term, inverse in reversed(steps):
            ranks = ranks ^ (ranks >> self._shift)
            ranks = (ranks * inverse - term) & self.mask
        return ranks


def wait_for_clients(
    grid: Grid,
    count: int,
    *,
    emit: Callable[[int], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Sequence[int]:
    """Wait until `count` clients are connected, and return the node ids, ascending.

    A grid with a `wait_for_nodes(count)` waits by itself; others are asked again and again.
    `emit` is called with the number of clients whenever it changes.

    Edge cases: there are fewer than `count` if the grid is stopping, or gave up waiting.
    """
    present = _present(grid)
    if len(present) >= count:
        return present
    emit(len(present))
    if wait_without_polling(grid, count):
        return _present(grid)
    while len(present) < count and not is_stopping(grid):
        sleep(POLL_S)
        before, present = len(present), _present(grid)
        if len(present) != before:
            emit(len(present))
    return present


def wait_for_replies(
    grid: Grid, message_ids: Sequence[str], *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until a reply to one of these messages may be there, or clients have come or gone.

    A grid with a `wait_for_replies(ids)` waits by itself; others are asked again after a pause.
    """
    if not waits_for_replies(grid, message_ids):
        sleep(POLL_S)


def wait_for_separated(
    grid: Grid,
    count: int,
    separated: Callable[[Sequence[int]], Sequence[int]],
    *,
    emit: Callable[[int], None],
) -> Sequence[int]:
    """Wait until `count` of the connected clients may be drawn, and return those.

    Edge cases: as `wait_for_clients`.
    """
    resting = 0
    while True:
        present = wait_for_clients(grid, count + resting, emit=emit)
        found = separated(present)
        if len(found) >= count or len(present) < count + resting:
            return found
        resting = len(present) - len(found)


def _present(grid: Grid) -> Sequence[int]:
    ids = grid.get_node_ids()
    return ids if isinstance(ids, range) else sorted(ids)
