"""A cohort cut into groups, and the order in which groups begin.

A group is what a worker takes at once, and what is summed up to one partial, exactly: neither where
the cuts are nor which group begins first, and where, changes a bit of the round's sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

__all__ = ["ClientTimes", "Schedule", "cut", "groups_worth"]

HANDED_OVER_S, VALUE_HANDED_OVER_S = 2e-3, 4e-8
"""What handing over a group takes (measured), and each value of its exact sums: written, read, added up."""
HANDING_OVER_SHARE = 0.05
"""How much of a round more groups than workers may take."""


def cut(count: int, *, workers: int, groups_per_worker: int, clients_max: int) -> list[range]:
    """Return the places of each group: consecutive, their sizes equal up to one.

    There are `groups_per_worker` groups a worker, or more so that none exceeds `clients_max`.

    Edge cases: fewer clients than that give groups of one client; none give none.
    """
    groups = min(count, max(workers * groups_per_worker, -(-count // clients_max)))
    bounds = [count * place // max(groups, 1) for place in range(groups + 1)]
    return [range(start, stop) for start, stop in pairwise(bounds)]


def groups_worth(round_s: float, *, values: int) -> int:
    """Return how many groups a worker is to have at most, in a round that is expected to last so long.

    More groups than workers let these end together, where clients differ; handing them over may take
    `HANDING_OVER_SHARE` of the round. `values` are those of a group's sums, 0 if there are none.
    """
    each_s = HANDED_OVER_S + VALUE_HANDED_OVER_S * values
    return max(1, int(HANDING_OVER_SHARE * round_s / each_s))


class ClientTimes:
    """How long each client took, when it was last measured; four bytes a client."""

    def __init__(self, clients: int) -> None:
        self._seconds = np.zeros(clients + 1, np.float32)
        self._total_s = 0.0
        self._known = 0

    @property
    def known(self) -> bool:
        """Whether any client was measured."""
        return self._known > 0

    def add(self, seconds: Mapping[int, float]) -> None:
        """Note what was measured, by node id; a node that is no client is passed over."""
        for node_id, took_s in seconds.items():
            if not 1 <= node_id < len(self._seconds) or not took_s > 0:
                continue
            before_s = float(self._seconds[node_id])
            self._seconds[node_id] = took_s
            self._total_s += float(self._seconds[node_id]) - before_s
            self._known += not before_s

    def expected_s(self, node_ids: Sequence[int]) -> float:
        """Return how long these clients will take together; an unknown one counts as the mean."""
        places = np.clip(np.asarray(node_ids, np.int64), 0, len(self._seconds) - 1)
        seconds = self._seconds[places]
        mean_s = self._total_s / self._known if self._known else 1.0
        return float(seconds.sum() + mean_s * np.count_nonzero(seconds == 0))


class Schedule:
    """The groups that have not begun."""

    def __init__(self, expected_s: Sequence[float]) -> None:
        self._expected_s = expected_s
        self._open = set(range(len(expected_s)))
        self._in_order = list(self._open)
        self._longest = [(-seconds, group) for group, seconds in enumerate(expected_s)]
        heapify(self._in_order)
        heapify(self._longest)

    def __bool__(self) -> bool:
        return bool(self._open)

    def next(self, *, in_order: bool) -> int:
        """Take the group that is expected to last longest, or the first one with `in_order`."""
        while True:
            group = heappop(self._in_order) if in_order else heappop(self._longest)[1]
            if group in self._open:  # otherwise it was taken by the other order
                self._open.remove(group)
                return group

    def put_back(self, group: int) -> None:
        """Let a group begin again: its worker was lost."""
        self._open.add(group)
        heappush(self._in_order, group)
        heappush(self._longest, (-self._expected_s[group], group))
