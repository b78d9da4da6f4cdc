"""Updates that relays have added up: exact sums, so that a tree gives the bits of one server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from ...errors import ConfigError
from ...flower.messages import FlatTensor, MemoryTensor
from ..algorithms.algorithm import Algorithm, Params, Update
from ..algorithms.combined import SummedRecord
from ..algorithms.exact_sums import SparseTensor, add_exactly, exact_parts, exact_sums
from ..algorithms.layout import RowLayout
from ..algorithms.mean import MeanAggregator, factor_of, rows_of
from .checks import Reply, ReplyError
from .grids import adds_exactly

__all__ = ["ExactFold", "require_sums_suffice", "update_of", "update_of_sums"]

GROUP = 20
"""Updates that are held in memory, and added up at once."""
STORED_MAX = 256
"""So many updates in files may wait: each keeps a file open."""
PARTS_MAX = 8
"""Numbers that together are a sum of weights."""


class ExactFold:
    """Adds updates up, without rounding errors, in any order.

    Memory: a row of float64 values, and a second one where sums need more bits; no copy of an
    update that lies in a file.
    """

    def __init__(self, like: Params, *, group: int = GROUP) -> None:
        """`group` is how many updates may be held in memory."""
        self._layout = RowLayout(like)
        self._group = group
        self._waiting: list[Update] = []
        self._rows: list[NDArray[np.float64]] = []
        self._weights: list[float] = []

    def add(self, update: Update) -> None:
        """Add an update."""
        for each in (update, *update.rests):
            self._waiting.append(each)
            self._weights.append(each.weight)
        held = not all(each.stored for each in self._waiting)
        if len(self._waiting) >= (self._group if held else STORED_MAX):
            self._flush()
        if len(self._weights) > STORED_MAX:
            self._weights = exact_parts(self._weights)

    def finish(self) -> tuple[Params, Params, Sequence[float]]:
        """Return the sums by tensor, float64 (complex128); what these lack, as a `SummedRecord` has it; and
        numbers with exactly the sum of the weights."""
        self._flush()
        layout, rows = self._layout, self._rows or [np.zeros(self._layout.total)]
        sums, start = {}, 0
        for place, (name, size) in enumerate(zip(layout.names, layout.sizes, strict=True)):
            values: NDArray[Any] = rows[0][start : start + size]
            if layout.reals[place] == 2:
                values = values.view(np.complex128)
            sums[name] = values.reshape(layout.shapes[place])
            start += size
        places = [np.flatnonzero(row) for row in rows[1:]]
        positions = np.concatenate([np.zeros(0, np.int64), *places])
        values = np.concatenate(
            [np.zeros(0), *(row[at] for row, at in zip(rows[1:], places, strict=True))]
        )
        order = np.argsort(positions, kind="stable")
        rests = {"positions": positions[order], "values": values[order]}
        return sums, rests, exact_parts(self._weights)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), GROUP):
            group = waiting[start : start + GROUP]
            factors = np.array([factor_of(update) for update in group])
            summed = all(update.summed for update in group)
            for block, values in rows_of(self._layout, group):
                parts = [row[block.start : block.stop] for row in self._rows]
                known = len(parts)
                # sums have 53 bits already, which leave no room for slices
                for row in values.copy() if summed else exact_sums(factors, values).rows():
                    add_exactly(parts, row)
                for place, part in enumerate(parts):
                    if place >= len(self._rows):
                        self._rows.append(np.zeros(self._layout.total))
                    if place >= known or part.base is not self._rows[place]:
                        self._rows[place][block.start : block.stop] = part


def require_sums_suffice(algorithm: Algorithm, grid: Grid) -> None:
    """Check that an algorithm needs no more than what relays send, where clients are behind some.

    Raises:
        ConfigError: it does.
    """
    if adds_exactly(grid) and not (
        algorithm.linear
        and isinstance(algorithm.aggregator, MeanAggregator)
        and algorithm.fault is None
        and not algorithm.lengths_max
    ):
        raise ConfigError(
            f"{algorithm.name} needs more than the clients' weighted sum, but some clients are behind a "
            "relay, which adds their updates up: connect them to the server itself, or choose others "
            "by selection.tags"
        )


def update_of(
    reply: Reply, metrics: object, tensors: Mapping[str, FlatTensor], *, client: int
) -> Update:
    """Return a reply's update; that of a relay consists of sums.

    Raises:
        ReplyError: what a relay says of its sums is not what it may be.
    """
    stored = MemoryTensor not in map(type, tensors.values())
    update = Update(
        client=client,
        params=tensors,
        weight=reply.weight,
        clients=len(reply.clients),
        metrics=reply.metrics,
        stored=stored,
        summed=isinstance(metrics, SummedRecord),
    )
    if not isinstance(metrics, SummedRecord):
        return update
    weights = [float(weight) for weight in metrics.weights]
    if not 0 < len(weights) <= PARTS_MAX or weights[0] != reply.weight:
        raise ReplyError(client, "weights", "are not those of the relay's clients")
    summed = update_of_sums(
        tensors, metrics.rests, weights, client=client, clients=len(reply.clients), stored=stored
    )
    return replace(summed, metrics=reply.metrics)


def update_of_sums(
    sums: Mapping[str, FlatTensor],
    rests: Mapping[str, FlatTensor],
    weights: Sequence[float],
    *,
    client: int,
    clients: int,
    stored: bool,
) -> Update:
    """Return what `ExactFold.finish` gave as one update.

    Raises:
        ReplyError: `rests` are not as that gives them.
    """
    lacking = _rests(client, rests, sums, stored=stored)
    spare = [*weights[1:], *[0.0] * len(lacking)]
    while len(lacking) < len(weights) - 1:
        lacking.append({name: _sparse(tensor) for name, tensor in sums.items()})
    more = tuple(
        Update(client=client, params=params, weight=weight, clients=0, stored=stored, summed=True)
        for params, weight in zip(lacking, spare, strict=False)
    )
    return Update(
        client=client,
        params=sums,
        weight=weights[0],
        clients=clients,
        stored=stored,
        summed=True,
        rests=more,
    )


def _rests(
    client: int,
    rests: Mapping[str, FlatTensor],
    tensors: Mapping[str, FlatTensor],
    *,
    stored: bool,
) -> list[dict[str, FlatTensor]]:
    """Return what sums lack as rows, in each of which a position is there once."""
    sizes = [_reals_in(tensor) for tensor in tensors.values()]
    total = sum(sizes)
    positions, values = rests.get("positions"), rests.get("values")
    if (
        set(rests) != {"positions", "values"}
        or positions is None
        or values is None
        or positions.dtype != np.int64
        or values.dtype != np.float64
        or positions.shape != values.shape
        or len(values.shape) != 1
        or values.shape[0] > PARTS_MAX * total
    ):
        raise ReplyError(client, "rests", "are not positions and values")
    places, found = positions.numpy(), values.numpy()
    inside = not places.size or (places[0] >= 0 and places[-1] < total)
    if not inside or (np.diff(places) < 0).any() or not np.isfinite(found).all():
        raise ReplyError(client, "rests", "are not at ascending positions of the model")
    rows: list[dict[str, FlatTensor]] = []
    while places.size:
        if len(rows) >= PARTS_MAX:
            raise ReplyError(client, "rests", "have a position too often")
        first = np.append(True, places[1:] != places[:-1])
        at, lacking = places[first], found[first].astype(np.float64)
        row, start = dict[str, FlatTensor](), 0
        for name, size in zip(tensors, sizes, strict=True):
            low, high = np.searchsorted(at, (start, start + size))
            values = lacking[low:high]
            row[name] = SparseTensor((size,), at[low:high] - start, values)
            start += size
        rows.append(row)
        places, found = places[~first], found[~first]
    return rows


def _reals_in(tensor: FlatTensor) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64)) * (2 if tensor.dtype.kind == "c" else 1)


def _sparse(tensor: FlatTensor) -> SparseTensor:
    return SparseTensor((_reals_in(tensor),), np.zeros(0, np.int64), np.zeros(0))
