"""Folds a round's updates in the canonical order of their clients, in any order of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .algorithm import Aggregate, Aggregator, Params, Update

__all__ = ["CanonicalFold"]


class CanonicalFold:
    """Passes updates on to an aggregator as soon as everybody before them is settled.

    Canonical order is ascending node id. An update waits, by reference, only while a client
    before it has neither answered nor failed.

    Guarantees: the aggregate depends on the set of updates, not on the order of their arrival.
    """

    def __init__(self, aggregator: Aggregator[Any], like: Params, cohort: Iterable[int]) -> None:
        self._aggregator = aggregator
        self._sum = aggregator.zero(like)
        self._cohort: Sequence[int] = sorted(cohort)
        self._next = 0
        self._settled: set[int] = set()
        self._waiting: dict[int, Update] = {}

    def add(self, update: Update, *, stands_for: Iterable[int] = ()) -> None:
        """Take a client's update, and that of all clients that it stands for."""
        self._waiting[update.client] = update
        self.settle(update.client, *stands_for)

    def settle(self, *clients: int) -> None:
        """Note that nothing more will come from these clients."""
        self._settled.update(clients)
        while self._next < len(self._cohort) and self._cohort[self._next] in self._settled:
            update = self._waiting.pop(self._cohort[self._next], None)
            if update is not None:
                self._sum = self._aggregator.fold(self._sum, [update])
            self._next += 1

    def finish(self) -> Aggregate:
        """Return the aggregate, without the clients that have not answered."""
        self.settle(*self._cohort)
        return self._aggregator.finish(self._sum)
