"""Partial sums: what a group's updates add up to, and how a round's partials become one reply.

Both are in float64 and in the canonical order of clients and groups, so that the result depends
on how the cohort was cut, but not on who worked on what, or when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Error, Message, RecordDict

from ....errors import UpdateError
from ....flower.messages import (
    FlatTensor,
    MemoryTensor,
    params_to_arrays,
    rebuild_message,
    tensors_of,
)
from ....privacy.dp.mechanisms.clipping import Clipping, clip_update
from ....privacy.dp.noise_terms import NoiseTerms
from ....strategies.algorithms.algorithm import Aggregate, Params, Update
from ....strategies.algorithms.canonical import CanonicalFold
from ....strategies.algorithms.combined import ClientTable
from ....strategies.algorithms.mean import MeanAggregator, MeanSum
from ....strategies.rounds.checks import ReplyError, forms_of, read_reply
from ....strategies.rounds.replies import add_rows
from ..contract import APP_RAISED

__all__ = ["GroupSum", "Partial", "Total", "clipping_by_server", "partial_content", "sums_in"]

GROUP = 8
"""Updates, or partials, that are held in memory and added up at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """What a group's updates add up to.

    `sums` are the weighted sums by tensor, float64 (complex128); `table` has its clients.
    """

    sums: dict[str, FlatTensor]
    weight: float
    table: ClientTable


@dataclass(frozen=True, slots=True, kw_only=True)
class _SumAggregator:
    """Computes weighted sums instead of means, and does not cast them."""

    mean: MeanAggregator

    @property
    def group(self) -> int:
        return self.mean.group

    def zero(self, like: Params) -> MeanSum:
        return self.mean.zero({name: _wide(values) for name, values in like.items()})

    def fold(self, accumulator: MeanSum, updates: Sequence[Update]) -> MeanSum:
        return self.mean.fold(accumulator, updates)

    def finish(self, accumulator: MeanSum) -> Aggregate:
        weight, accumulator.weight = accumulator.weight, 1.0  # what it divides the sums by
        return replace(self.mean.finish(accumulator), weight=weight)


def _wide(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of the same shape, of the dtype that sums have; it takes no memory."""
    dtype = np.complex128 if values.dtype.kind == "c" else np.float64
    return np.broadcast_to(np.zeros((), dtype), values.shape)


class GroupSum:
    """Takes the replies of a group's clients, in any order, and adds up the valid ones."""

    def __init__(
        self, params: Params, clients: Sequence[int], clipping: Clipping | None = None
    ) -> None:
        """Begin with nothing; `clipping` is how the server would clip what single clients sent."""
        self._params, self._clipping = params, clipping
        self._forms = forms_of(params)
        aggregator = _SumAggregator(mean=MeanAggregator(group=GROUP, exact=False))
        self._fold = CanonicalFold(aggregator, params, clients)
        self._table = ClientTable()

    def take(self, reply: Message, *, combined: bool) -> Message | None:
        """Add a reply up; return it, or what it is refused with, if it has no valid update."""
        if reply.has_error():
            self._fold.settle(reply.metadata.src_node_id)
            return reply
        try:
            read = read_reply(reply, forms=self._forms, combined=combined)
            tensors = read.tensors
            if self._clipping is not None and len(read.clients) == 1:
                tensors, _ = clip_update(self._params, tensors, self._clipping, exact=True)
        except UpdateError as error:
            self._fold.settle(reply.metadata.src_node_id)
            text = f"{error.field} {error.reason}" if isinstance(error, ReplyError) else str(error)
            return rebuild_message(reply.metadata, Error(APP_RAISED, text))
        update = Update(
            client=read.clients[0],
            params=tensors,
            weight=read.weight,
            clients=len(read.clients),
        )
        add_rows(self._table, read)
        self._fold.add(update, stands_for=read.clients)
        return None

    def finish(self) -> Partial | None:
        """Return the sums, None if no update was valid."""
        if not self._table.clients:
            return None
        aggregate = self._fold.finish()
        sums: dict[str, FlatTensor] = {
            name: MemoryTensor(values) for name, values in aggregate.mean.items()
        }
        return Partial(sums=sums, weight=aggregate.weight, table=self._table.closed())


class Total:
    """Adds the partials of a round up, in the order of their groups, whichever comes first."""

    def __init__(self, params: Params, *, exact: bool = False) -> None:
        """Begin with nothing; an `exact` mean is float64, to be cast after noise was added."""
        self._mean = MeanAggregator(group=GROUP)
        like = {
            name: _wide(values) if exact and values.dtype.kind in "fV" else values
            for name, values in params.items()
        }
        self._sum = self._mean.zero(like)
        self._table = ClientTable()
        self._waiting: dict[int, Partial | None] = {}
        self._next = 0

    @property
    def waiting(self) -> int:
        """How many partials are held back, since one before them is missing."""
        return len(self._waiting)

    def add(self, group: int, partial: Partial | None) -> None:
        """Take a group's partial; None if there is nothing of it."""
        self._waiting[group] = partial
        while self._next in self._waiting:
            first = self._waiting.pop(self._next)
            if first is not None:
                self._add(first)
            self._next += 1

    def finish(self) -> tuple[list[int], RecordDict] | None:
        """Return the contributing clients and the content of the reply that stands for them.

        The mean is cast once, as `MeanAggregator` does; None if there are no updates.
        """
        assert not self._waiting, "a group before these was never settled"
        if not self._table.clients:
            return None
        arrays = params_to_arrays(self._mean.finish(self._sum).mean)
        content = RecordDict({"arrays": arrays, "metrics": self._table.record()})
        return self._table.clients, content

    def _add(self, partial: Partial) -> None:
        table = partial.table
        update = Update(
            client=table.clients[0],
            params=partial.sums,
            weight=partial.weight,
            clients=len(table.clients),
            summed=True,
        )
        self._sum = self._mean.fold(self._sum, [update])
        self._table.add(table.clients, table.examples, table.metrics)


def clipping_by_server(content: RecordDict) -> Clipping | None:
    """Return how the server clips what clients of a round send, None if it does not: noise that they
    have added themselves would be cut off."""
    config = content.config_records.get("config")
    noise = None if config is None else NoiseTerms.of(config)
    return None if noise is None or noise.place != "server" else Clipping.of(config or {})


def partial_content(partial: Partial) -> RecordDict:
    """Return a partial's sums as a record, to be written; `sums_in` reads them."""
    return RecordDict({"sums": params_to_arrays(partial.sums)})


def sums_in(content: RecordDict) -> dict[str, FlatTensor]:
    """Return the sums that `partial_content` wrote; they stay in their file."""
    return tensors_of(content.array_records["sums"])
