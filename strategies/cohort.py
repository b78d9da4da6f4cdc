"""Who takes part in a round: waiting for enough clients, and drawing the cohort among them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
from flwr.serverapp import Grid

from ..seeds import derive
from .grids import is_stopping, wait_without_polling

__all__ = ["draw_cohort", "wait_for_clients"]

POLL_S = 0.2


def draw_cohort(
    clients: Iterable[int], *, cohort: float, at_least: int, seed: int, round_number: int
) -> list[int]:
    """Draw a round's cohort among the connected clients, in canonical (ascending) order.

    Every client has a number that (seed, round, client) decides, and the lowest ones take part.
    So a client that comes or goes changes the cohort by at most that one client.

    Units: `cohort` is a fraction if it is a float, a number of clients if it is an int.
    Edge cases: `at_least` prevails over a smaller cohort, and the clients there are over both.
    Guarantees: depends on the set of clients only, not on their order.
    """
    present = np.unique(np.fromiter(clients, dtype=np.uint64))
    # 100 * 0.29 is 28.999...: a fraction that rounding has made smaller is meant as written
    wanted = cohort if isinstance(cohort, int) else int(len(present) * cohort + 1e-9)
    size = min(len(present), max(wanted, at_least))
    if size < len(present):
        ranks = _mix(present ^ np.uint64(derive(seed, "cohort", round_number)))
        present = np.sort(present[np.argsort(ranks, kind="stable")[:size]])
    return [int(client) for client in present]


def _mix(
    values: np.ndarray[tuple[int], np.dtype[np.uint64]],
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Scramble 64-bit numbers, one to one.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014),
        the finaliser of SplitMix64 (Stafford's variant 13).
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def wait_for_clients(
    grid: Grid,
    count: int,
    *,
    tell: Callable[[int], None],
    sleep: Callable[[float], None] = time.sleep,
) -> list[int]:
    """Wait until `count` clients are connected, and return the node ids, ascending.

    A grid with a `wait_for_nodes(count)` waits by itself; others are asked again and again.
    `tell` hears how many there are, whenever that changes.

    Edge cases: there are fewer than `count` if the grid is stopping, or gave up waiting.
    """
    present = sorted(grid.get_node_ids())
    if len(present) >= count:
        return present
    tell(len(present))
    if wait_without_polling(grid, count):
        return sorted(grid.get_node_ids())
    while len(present) < count and not is_stopping(grid):
        sleep(POLL_S)
        before, present = len(present), sorted(grid.get_node_ids())
        if len(present) != before:
            tell(len(present))
    return present
