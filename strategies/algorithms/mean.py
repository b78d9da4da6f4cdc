"""The weighted mean of updates, as a streaming fold: memory for one sum, for any number of clients.

The mean is the correctly rounded one: the exact sum of the weighted values, rounded to float64,
divided by the weight, and cast. It does not depend on the order of the updates, on how they are
grouped, nor on who has added which up. Floating point comes first, and a bound of its error; only
values that the error could have rounded otherwise are added up again, exactly.

All tensors of a model are laid end to end, as one row of real values (a complex one is two).
The row is worked through in blocks: the block of up to 20 updates is cast to a float64 matrix
that stays in the cache, and one vector-matrix product adds them up. Updates wait for the end, and are
then added block by block, so that they need no sum of the whole row, and all cores can take part.
Only those that are held in memory, or are too many files, are added up before, group by group: exactly
while a model is small; of a larger one in float64, which depends on their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import RunError
from ...flower.messages import FlatTensor, MemoryTensor
from ...machine.process_limits import available_cores
from .algorithm import Aggregate, Params, Update
from .exact_sums import add_exactly, exact_parts, exact_sums, two_sum
from .layout import BLOCK, Block, RowLayout

__all__ = [
    "Alter",
    "Forms",
    "MeanAggregator",
    "MeanStore",
    "MeanSum",
    "as_reals",
    "factor_of",
    "rows_of",
]

Reals = NDArray[np.float64]
Alter = Callable[[Block, Reals], None]

WRITTEN_BLOCKS = 64
"""So many blocks of a mean, 8 MB of float32, are written before their store takes them."""
PARALLEL_VALUES_MIN = 1 << 20
"""Fewer are not worth a thread."""
WIDENING_MAX = 4
"""By how much blocks may be wider than `BLOCK`, which leaves room in the cache for few updates."""
STORED_MAX = 512
"""So many updates in files may wait: each keeps a file open."""
EXACT_VALUES_MAX = 32 << 10
"""Of larger models, groups of updates that are held in memory have float64 sums: on a network, tensors so
large come as files."""
LARGEST_MIN = 1e-140
"""Squares of smaller values may be zero."""
SETTLED_MIN = 16_384
"""Doubtful values that are added up exactly at once."""
PRODUCT_BITS = {"float32": 29, "float16": 42, "bfloat16": 45, "complex64": 29}
"""The bits that float64 has beyond those of a value: a whole weight of fewer makes no rounding error."""
PLAIN_ROWS_MAX = 4
"""Of more updates it takes longer to look at every sum than at those that are doubtful."""
ROUNDING = 2.0**-53
"""The largest relative error of a float64 operation."""


class MeanStore(Protocol):
    """Where a mean is written instead of into memory: a file, for instance."""

    flats: list[NDArray[Any]]
    """The tensors' values."""

    def wrote(self, first: tuple[int, int], last: tuple[int, int]) -> None:
        """Take what was written between two places: (tensor, its real values up to there)."""

    def finish(self, forms: Mapping[str, object]) -> Params:
        """Return the mean, once `flats` are full."""


Forms = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]


def leave(block: Block, values: Reals) -> None:
    """Alter nothing."""


class Workspace:
    """Where a block of a group of updates is added up."""

    def __init__(self, group: int, width: int) -> None:
        self.scratch: Reals = np.empty(group * width)
        """The block of every update, one after the other."""
        self.row: Reals = np.empty(width)
        """The block's weighted sum."""


@dataclass(slots=True, kw_only=True)
class MeanSum:
    """The accumulator: what has been summed up so far, and the updates that wait to be."""

    layout: RowLayout
    sums: Reals | None = None
    """The weighted sum of the groups that did not wait."""
    waiting: list[Update] = field(default_factory=list)
    parts: list[Reals] = field(default_factory=list)
    """Rows whose exact sum is that of the groups that did not wait, of a small model."""
    crowded: bool = False
    """Whether waiting updates are held in memory, or are too many files."""
    weight: float = 0.0
    weights: list[float] = field(default_factory=list)
    """Numbers with exactly the sum of all weights."""
    clients: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanAggregator:
    """Computes the mean of the updates' params, weighted by their number of examples.

    Guarantees: sums are float64 (complex128) for every dtype, and the mean is cast once, to the
        params' dtype: integers are rounded half to even, a boolean is true from a mean of 0.5.
        The result depends on the updates and their order alone: not on how they are cut into
        calls, and not on the number of threads. Reads updates by slices only.
        Memory: 1 byte a byte of float32 params, for the mean; none in a store; 2 if more than `group` updates are
        held in memory, or more than `STORED_MAX` in files. No other copy.
    Edge cases: scalars, tensors without values, and models without tensors.
    """

    group: int = 20
    """How many updates are added up at once."""
    exact: bool = True
    """False for sums that are only intermediate results: they are those of floating point."""
    store: Callable[[Forms], MeanStore | None] | None = None
    """Makes the place of a mean, None for one in memory. It is asked if all updates wait, so that
    nothing was added up before."""

    def zero(self, like: Params) -> MeanSum:
        """Return the sum of no updates, for params like these."""
        return MeanSum(layout=RowLayout(like, block=BLOCK))

    def fold(self, accumulator: MeanSum, updates: Sequence[Update]) -> MeanSum:
        """Add updates, in the canonical order of their clients."""
        for update in chain.from_iterable((each, *each.rests) for each in updates):
            if accumulator.crowded and len(accumulator.waiting) >= self.group:
                self._add_first(accumulator)
            accumulator.waiting.append(update)
            accumulator.crowded |= not update.stored or len(accumulator.waiting) > STORED_MAX
            accumulator.weight += update.weight
            accumulator.weights.append(update.weight)
            if len(accumulator.weights) > STORED_MAX:
                accumulator.weights = exact_parts(accumulator.weights)
            accumulator.clients += update.clients
        while accumulator.crowded and len(accumulator.waiting) > self.group:
            self._add_first(accumulator)
        return accumulator

    def finish(self, accumulator: MeanSum, alter: Alter = leave) -> Aggregate:
        """Return the mean, in the memory of the accumulator, which is used up.

        `alter` changes the mean's values before they are rounded, in place, block by block.

        Raises:
            RunError: no updates were folded.
        """
        if not accumulator.waiting:
            raise RunError("there are no updates to aggregate")
        if self.exact:
            accumulator.weight = math.fsum(accumulator.weights)
        mean = self._narrow(accumulator, alter)
        return Aggregate(mean=mean, weight=accumulator.weight, clients=accumulator.clients)

    def _add_first(self, accumulator: MeanSum) -> None:
        """Add the first group of the waiting updates to the sums of the whole row."""
        if self.exact and accumulator.layout.total <= EXACT_VALUES_MAX:
            self._add_exactly(accumulator)
            return
        first = accumulator.sums is None
        sums = np.empty(accumulator.layout.total) if accumulator.sums is None else accumulator.sums
        group = accumulator.waiting[: self.group]
        space = Workspace(self.group, accumulator.layout.width)
        for block, values, _ in _sums_of(
            accumulator.layout, group, space, accumulator.layout.blocks
        ):
            if first:
                sums[block.start : block.stop] = values
            else:
                sums[block.start : block.stop] += values
        accumulator.sums = sums
        del accumulator.waiting[: self.group]
        accumulator.crowded = not all(update.stored for update in accumulator.waiting)

    def _add_exactly(self, accumulator: MeanSum) -> None:
        """Add the first group of the waiting updates to the parts."""
        layout, group = accumulator.layout, accumulator.waiting[: self.group]
        space = Workspace(self.group, layout.total)
        factors = np.array([factor_of(update) for update in group])
        for _, _, values in _sums_of(layout, group, space, list(layout.cut(EXACT_VALUES_MAX))):
            for row in exact_sums(factors, values).rows():
                add_exactly(accumulator.parts, row)
        del accumulator.waiting[: self.group]
        accumulator.crowded = not all(update.stored for update in accumulator.waiting)

    def _narrow(self, accumulator: MeanSum, alter: Alter) -> Params:
        """Add the waiting updates and cast the mean to the params' dtypes.

        It takes the sums' place: a value is never written beyond where its sum was, since no
        dtype is wider than its sums.
        """
        layout, sums, weight = accumulator.layout, accumulator.sums, accumulator.weight
        accumulator.waiting += _as_updates(accumulator.parts, layout)
        forms = dict(zip(layout.names, zip(layout.dtypes, layout.shapes, strict=True), strict=True))
        if self.store is None and sums is None and alter is leave and _is_one(accumulator):
            (update,), accumulator.waiting = accumulator.waiting, []
            return {name: _same(update.params[name]) for name in layout.names}
        store = self.store(forms) if self.store is not None and sums is None else None
        buffer = sums if sums is not None else np.empty(0 if store else layout.mean_bytes // 8)
        tensors = [] if store else layout.tensors_in(buffer)
        exact = self.exact and sums is None and alter is leave  # else it is not rounded here

        flats = store.flats if store else [tensor.reshape(-1) for tensor in tensors]

        def narrow(blocks: Sequence[Block]) -> None:
            doubtful = Doubtful(accumulator, flats)
            summed = _sums_of_waiting(accumulator, self.group, blocks)
            for number, (block, values, error, rows) in enumerate(summed, start=1):
                if exact and error > 0.0:
                    doubtful.write(block, values, error, rows)
                else:
                    values /= weight
                    alter(block, values)
                    for tensor, start, stop, offset in block.segments:
                        _cast(values[offset : offset + stop - start], flats[tensor], start)
                if store and number % WRITTEN_BLOCKS == 0:
                    # from the first on: what was doubtful is written again
                    store.wrote(*_ends_of(blocks[0], block))
            doubtful.settle()
            if store and blocks:
                store.wrote(*_ends_of(blocks[0], blocks[-1]))

        if sums is None and alter is leave and layout.total >= PARALLEL_VALUES_MIN:
            widening = min(WIDENING_MAX, self.group // len(accumulator.waiting))
            _on_all_cores(narrow, list(layout.cut(BLOCK * max(1, widening))))
        else:  # what takes the place of sums, or is altered, goes from the first to the last
            narrow(layout.blocks)
        accumulator.sums, accumulator.waiting = None, []
        if store:
            return store.finish(forms)
        if sums is not None:
            tensors.clear()  # nothing may point into the buffer while it shrinks
            flats.clear()
            buffer.resize(layout.mean_bytes // 8, refcheck=False)
            tensors = layout.tensors_in(buffer)
        return dict(zip(layout.names, tensors, strict=True))


def _is_one(accumulator: MeanSum) -> bool:
    """Return whether the mean is that of one update, in memory and in the params' dtypes: its values."""
    layout, (update, *others) = accumulator.layout, accumulator.waiting
    if others or update.summed or update.stored:
        return False
    pairs = zip(layout.names, layout.dtypes, strict=True)
    return all(update.params[name].dtype == dtype for name, dtype in pairs)


def _same(tensor: FlatTensor) -> NDArray[Any]:
    """Return a copy of a tensor, in which minus zero is zero."""
    values = np.array(tensor[0 : math.prod(tensor.shape)]).reshape(tensor.shape)
    if values.dtype.kind not in "biu":
        np.add(values, values.dtype.type(0), out=values)
    return values


def _ends_of(first: Block, last: Block) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return where the first block begins and the last one ends: (tensor, its real values)."""
    begin, end = first.segments[0], last.segments[-1]
    return (begin.tensor, begin.start), (end.tensor, end.stop)


def _on_all_cores(work: Callable[[Sequence[Block]], None], blocks: Sequence[Block]) -> None:
    """Do work on blocks, each core on a part of them."""
    count = -(-len(blocks) // available_cores())
    shares = [blocks[start : start + count] for start in range(0, len(blocks), count)]
    with ThreadPoolExecutor(len(shares)) as pool:
        list(pool.map(work, shares))


def _sums_of(
    layout: RowLayout, updates: Sequence[Update], space: Workspace, blocks: Sequence[Block]
) -> Iterator[tuple[Block, Reals, Reals]]:
    """Yield block by block what a group of updates adds up to, and its values, a row an update.

    Both lie in the workspace: they are valid until the next ones are asked for.
    """
    tensors = [[as_reals(update.params[name]) for name in layout.names] for update in updates]
    weights = np.array([factor_of(update) for update in updates], np.float64)
    for block in blocks:
        size = block.stop - block.start
        flat = space.scratch[: len(updates) * size]
        pieces = [
            parts[tensor][start:stop]
            for parts in tensors
            for tensor, start, stop, _ in block.segments
        ]
        np.concatenate(pieces, out=flat, casting="unsafe")
        matrix = flat.reshape(len(updates), size)
        yield block, _weighted_sum(weights, matrix, out=space.row[:size]), matrix


def _sums_of_waiting(
    accumulator: MeanSum, group: int, blocks: Sequence[Block]
) -> Iterator[tuple[Block, Reals, float, Reals | None]]:
    """Yield block by block what all waiting updates and the sums add up to, and a bound of its error.

    The bound does not include the error of the sums. The last item are the values of all waiting
    updates, a row each; None if they are more than a group.
    """
    waiting, sums = accumulator.waiting, accumulator.sums
    width = max((block.stop - block.start for block in blocks), default=0)
    space = Workspace(min(group, len(waiting)), width)
    weights = [factor_of(update) for update in waiting]
    first, *others = (
        _sums_of(accumulator.layout, waiting[start : start + group], space, blocks)
        for start in range(0, len(waiting), group)
    )
    total = np.empty(width) if others else None
    # a product and a sum for every update: the classical bound (Higham 2002, section 3.1)
    unit = ROUNDING * (len(waiting) + len(others) + 2) if len(waiting) > 1 else 0.0
    for block, values, rows in first:
        magnitude = _magnitude(weights, rows)
        if sums is not None:
            values += sums[block.start : block.stop]
        if total is not None:
            part = total[: block.stop - block.start]
            part[:] = values
            for index, (_, more, rows) in enumerate(map(next, others), start=1):
                part += more
                magnitude += _magnitude(weights[index * group :], rows)
            values = part
        yield block, values, unit * magnitude, None if others else rows


def _magnitude(weights: Sequence[float], rows: Reals) -> float:
    """Return a bound of the weighted sum of magnitudes in each column, by one fast pass."""
    norms = [math.sqrt(float(np.dot(row, row))) for row in rows]
    return math.fsum(
        w * max(1.01 * norm, LARGEST_MIN) for w, norm in zip(weights, norms, strict=False)
    )


class Doubtful:
    """Means that the error of floating-point sums could have changed: they are computed again.

    They are few, unless many sums lie halfway between two means, as those of equal weights do.
    """

    def __init__(self, accumulator: MeanSum, flats: Sequence[NDArray[Any]]) -> None:
        self._accumulator = accumulator
        self._flats = flats
        self._weights = np.array([factor_of(update) for update in accumulator.waiting])
        self._plain = self._exact_products()
        """By tensor: whether its values times their weights are float64 without rounding."""
        self._found: list[tuple[int, NDArray[np.int64], Reals]] = []
        """By piece: the tensor, places in it, and the updates' values there, a row each."""
        self._count = 0

    def write(self, block: Block, sums: Reals, error: float, rows: Reals | None) -> None:
        """Write a block's means, and note those that are doubtful; `sums` is used up."""
        accumulator = self._accumulator
        few = rows is not None and len(rows) <= PLAIN_ROWS_MAX
        if rows is not None and few and all(self._plain[each.tensor] for each in block.segments):
            self._write_plain(block, rows)
            return
        others = sums + error
        sums -= error
        others /= accumulator.weight
        sums /= accumulator.weight
        for tensor, start, stop, offset in block.segments:
            flat, size = self._flats[tensor], stop - start
            real = flat.real.dtype if flat.dtype.kind == "c" else flat.dtype
            other = np.empty(size, real)
            _cast(sums[offset : offset + size], flat, start)
            _cast(others[offset : offset + size], other, 0)
            written = flat.view(real)[start:stop]
            places = np.flatnonzero(written != other)
            if places.size:
                if rows is not None:
                    values = rows[:, offset + places]
                else:
                    values = self._read(tensor, start, stop, places)
                self._add(tensor, start + places, values)
        if self._count >= SETTLED_MIN:
            self.settle()

    def _write_plain(self, block: Block, rows: Reals) -> None:
        """Write the means of a few updates whose sums have no rounding error, and note the rest.

        Of two clients of equal weight, sums are halfway between two means in every second place: they would all be
        doubtful, and nearly all are exact.
        """
        sums, lost = _plain_sums(self._weights, rows)
        sums /= self._accumulator.weight
        inexact = bool(lost.any())
        for tensor, start, stop, offset in block.segments:
            size = stop - start
            _cast(sums[offset : offset + size], self._flats[tensor], start)
            if inexact:
                places = np.flatnonzero(lost[offset : offset + size])
                self._keep(tensor, start + places, rows[:, offset + places])
        if self._count >= SETTLED_MIN:
            self.settle()

    def _add(self, tensor: int, places: NDArray[np.int64], values: Reals) -> None:
        """Write the means whose sums have no rounding error after all, and note the rest."""
        if self._plain[tensor]:
            sums, lost = _plain_sums(self._weights, values)
            sums /= self._accumulator.weight
            self._write(tensor, places, sums)
            places, values = places[lost], values[:, lost]
        self._keep(tensor, places, values)

    def _keep(self, tensor: int, places: NDArray[np.int64], values: Reals) -> None:
        if places.size:
            self._found.append((tensor, places, values))
            self._count += places.size

    def _exact_products(self) -> list[bool]:
        dtypes, weights = self._accumulator.layout.dtypes, self._weights
        rounds = any(update.summed for update in self._accumulator.waiting)
        if rounds or not (np.rint(weights) == weights).all():
            return [False] * len(dtypes)
        largest = float(weights.max())
        return [largest < 2.0 ** PRODUCT_BITS.get(dtype.name, -1) for dtype in dtypes]

    def _write(self, tensor: int, places: NDArray[np.int64], means: Reals) -> None:
        flat = self._flats[tensor]
        real = flat.real.dtype if flat.dtype.kind == "c" else flat.dtype
        cast = np.empty(len(places), real)
        _cast(means, cast, 0)
        flat.view(real)[places] = cast

    def settle(self) -> None:
        """Write the exact means."""
        found, self._found, self._count = self._found, [], 0
        if not found:
            return
        means = exact_sums(
            self._weights, np.concatenate([values for *_, values in found], axis=1)
        ).rounded
        means /= self._accumulator.weight
        done = 0
        for tensor, places, _ in found:
            self._write(tensor, places, means[done : done + len(places)])
            done += len(places)

    def _read(self, tensor: int, start: int, stop: int, places: NDArray[np.int64]) -> Reals:
        name, waiting = self._accumulator.layout.names[tensor], self._accumulator.waiting
        values = np.empty((len(waiting), len(places)))
        for row, update in zip(values, waiting, strict=True):
            row[:] = as_reals(update.params[name])[start:stop][places]
        return values


def _plain_sums(weights: Reals, values: Reals) -> tuple[Reals, NDArray[np.bool_]]:
    """Return the sums of columns, and which of them a rounding error has changed; products are exact."""
    rows = weights[:, None] * values
    lost = np.zeros(rows.shape[1], bool)
    while len(rows) > 1:  # half of them to the other half
        half = len(rows) // 2
        rows[:half], errors = two_sum(rows[:half], rows[-half:])
        lost |= errors.any(axis=0)
        rows = rows[:-half]
    return rows[0], lost


def rows_of(layout: RowLayout, updates: Sequence[Update]) -> Iterator[tuple[Block, Reals]]:
    """Yield block by block the values of updates, a row each: valid until the next are asked for."""
    space = Workspace(len(updates), layout.width)
    for block, _, rows in _sums_of(layout, updates, space, layout.blocks):
        yield block, rows


def factor_of(update: Update) -> float:
    """Return how often an update's values count."""
    return 1.0 if update.summed else update.weight


def _as_updates(rows: Sequence[Reals], layout: RowLayout) -> list[Update]:
    """Return sums of whole rows as updates."""
    found = []
    for row in rows:
        params: dict[str, FlatTensor] = {}
        start = 0
        for name, size, shape, dtype in zip(
            layout.names, layout.sizes, layout.shapes, layout.dtypes, strict=True
        ):
            values: NDArray[Any] = row[start : start + size]
            params[name] = MemoryTensor(
                (values.view(np.complex128) if dtype.kind == "c" else values).reshape(shape)
            )
            start += size
        found.append(Update(client=-1, params=params, weight=0.0, clients=0, summed=True))
    return found


class RealParts:
    """A complex tensor, read as a row of real and imaginary parts."""

    def __init__(self, tensor: FlatTensor) -> None:
        self._tensor = tensor

    def __getitem__(self, values: slice) -> NDArray[Any]:
        pairs = self._tensor[values.start // 2 : (values.stop + 1) // 2]
        parts = pairs.view(pairs.real.dtype)
        skipped = values.start % 2  # a block may begin with an imaginary part
        return parts[skipped : skipped + values.stop - values.start]


def as_reals(tensor: FlatTensor) -> FlatTensor | RealParts:
    """Return a tensor that is read as a row of real values."""
    return RealParts(tensor) if tensor.dtype.kind == "c" else tensor


def _weighted_sum(weights: Reals, matrix: Reals, *, out: Reals) -> Reals:
    """Sum up the rows, so that threads and neighbours change no bit of it."""
    if matrix.shape[1] % BLOCK == 0:
        np.dot(weights, matrix, out=out)
    else:  # BLAS may treat the last few columns differently, depending on its threads
        np.einsum("u,uv->v", weights, matrix, out=out)
    return out


def _cast(values: Reals, flat: NDArray[Any], start: int) -> None:
    """Write means to their place in a tensor: see the guarantees of `MeanAggregator`."""
    dtype = flat.dtype
    if dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    elif dtype.kind == "b":
        np.greater_equal(values, 0.5, out=values)
    elif dtype.kind in "iu":
        np.rint(values, out=values)
        if dtype.itemsize == 8:  # the float64 next to the largest integer is beyond it
            np.minimum(values, np.nextafter(float(np.iinfo(dtype).max), 0.0), out=values)
    target = flat[start : start + len(values)]
    np.copyto(target, values, casting="unsafe")
    if dtype.kind not in "biu":
        np.add(target, target.dtype.type(0), out=target)  # minus zero becomes zero
