"""Partial sums: what a group's updates add up to, and how a round's partials become one reply.

Both are exact, as a relay's: no cut of the cohort and no order changes a bit of the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from ....strategies.algorithms.algorithm import Params, Update
from ....strategies.algorithms.combined import ClientTable
from ....strategies.algorithms.mean import MeanAggregator
from ....strategies.rounds.checks import ReplyError, forms_of, read_reply
from ....strategies.rounds.relayed import ExactFold, update_of_sums
from ....strategies.rounds.replies import add_rows
from ..contract import APP_RAISED

__all__ = [
    "GroupSum",
    "Partial",
    "Total",
    "clipping_by_server",
    "held_at_once",
    "partial_content",
    "sums_in",
]

GROUP_MIN, GROUP_MAX, GROUP_BYTES = 8, 64, 16 << 20
"""Updates, or partials, that are held in memory and added up at once: as many as take so many bytes, between
both bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """What a group's updates add up to, exactly.

    `sums` are the weighted sums by tensor, float64 (complex128), and `rests` what rounding took
    from them (`ExactFold.finish`); `weights` are numbers with exactly the sum of all weights, the
    first of them that sum rounded; `table` has the clients, ascending.
    """

    sums: Mapping[str, FlatTensor]
    rests: Mapping[str, FlatTensor]
    weights: Sequence[float]
    table: ClientTable


def held_at_once(params: Params) -> int:
    """Return how many updates are held until they are added up: more of a small model."""
    size = sum(values.nbytes for values in params.values())
    return min(GROUP_MAX, max(GROUP_MIN, GROUP_BYTES // max(1, size)))


def _wide(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of the same shape, of the dtype that sums have; it takes no memory."""
    dtype = np.complex128 if values.dtype.kind == "c" else np.float64
    return np.broadcast_to(np.zeros((), dtype), values.shape)


class GroupSum:
    """Takes the replies of a group's clients, in any order, and adds up the valid ones."""

    def __init__(self, params: Params, clipping: Clipping | None = None) -> None:
        """Begin with nothing; `clipping` is how the server would clip what single clients sent."""
        self._params, self._clipping = params, clipping
        self._forms = forms_of(params)
        self._fold = ExactFold(params, group=held_at_once(params))
        self._table = ClientTable()

    def take(self, reply: Message, *, combined: bool) -> Message | None:
        """Add a reply up; return it, or what it is refused with, if it has no valid update."""
        if reply.has_error():
            return reply
        try:
            read = read_reply(reply, forms=self._forms, combined=combined)
            tensors = read.tensors
            if self._clipping is not None and len(read.clients) == 1:
                tensors, _ = clip_update(self._params, tensors, self._clipping, exact=True)
        except UpdateError as error:
            text = f"{error.field} {error.reason}" if isinstance(error, ReplyError) else str(error)
            return rebuild_message(reply.metadata, Error(APP_RAISED, text))
        self._fold.add(Update(client=read.clients[0], params=tensors, weight=read.weight))
        add_rows(self._table, read)
        return None

    def finish(self) -> Partial | None:
        """Return the sums, None if no update was valid."""
        if not self._table.clients:
            return None
        sums, rests, weights = self._fold.finish()
        return Partial(
            sums=_in_memory(sums),
            rests=_in_memory(rests),
            weights=weights,
            table=self._table.in_order(),
        )


class Total:
    """Adds the partials of a round up, whichever comes first."""

    def __init__(self, params: Params, *, exact: bool = False) -> None:
        """Begin with nothing; an `exact` mean is float64, to be cast after noise was added."""
        self._like = {
            name: _wide(values) if exact and values.dtype.kind in "fV" else values
            for name, values in params.items()
        }
        self._fold = ExactFold(self._like, group=held_at_once(self._like))
        self._tables: dict[int, ClientTable] = {}

    def add(self, group: int, partial: Partial | None) -> None:
        """Take a group's partial; None if there is nothing of it."""
        if partial is None:
            return
        self._fold.add(_update_of(partial.sums, partial.rests, partial.weights, partial.table))
        self._tables[group] = partial.table

    def finish(self) -> tuple[list[int], RecordDict] | None:
        """Return the contributing clients and the content of the reply that stands for them.

        The mean is cast once, as `MeanAggregator` does; None if there are no updates.
        """
        if not self._tables:
            return None
        table = ClientTable()
        for _, part in sorted(self._tables.items()):
            table.add(part.clients, part.examples, part.metrics)
        sums, rests, weights = self._fold.finish()
        mean = MeanAggregator()
        update = _update_of(_in_memory(sums), _in_memory(rests), weights, table)
        aggregate = mean.finish(mean.fold(mean.zero(self._like), [update]))
        arrays = params_to_arrays(aggregate.mean)
        return table.clients, RecordDict({"arrays": arrays, "metrics": table.record()})


def _in_memory(params: Params) -> dict[str, FlatTensor]:
    return {name: MemoryTensor(values) for name, values in params.items()}


def _update_of(
    sums: Mapping[str, FlatTensor],
    rests: Mapping[str, FlatTensor],
    weights: Sequence[float],
    table: ClientTable,
) -> Update:
    first, count = table.clients[0], len(table.clients)
    return update_of_sums(sums, rests, weights, client=first, clients=count, stored=False)


def clipping_by_server(content: RecordDict) -> Clipping | None:
    """Return how the server clips what clients of a round send, None if it does not: noise that they
    have added themselves would be cut off."""
    return Clipping.by_server(content.config_records.get("config") or {})


def partial_content(partial: Partial) -> RecordDict:
    """Return a partial's tensors as records, to be written; `sums_in` reads them."""
    return RecordDict(
        {"sums": params_to_arrays(partial.sums), "rests": params_to_arrays(partial.rests)}
    )


def sums_in(content: RecordDict) -> tuple[dict[str, FlatTensor], dict[str, FlatTensor]]:
    """Return the sums and rests that `partial_content` wrote; they stay in their files."""
    records = content.array_records
    return tensors_of(records["sums"]), tensors_of(records["rests"])
