"""The weighted mean of updates, as a streaming fold: memory for one sum, for any number of clients.

All tensors of a model are laid end to end, as one row of real values (a complex one is two).
The row is worked through in blocks: the block of up to 20 updates is cast to a float64 matrix
that stays in the cache, and one vector-matrix product adds them up. Updates that are held in
memory are added to a float64 sum of the whole row, group by group; those that lie in files wait
for the end, and are then added block by block, so that they need no such sum, and all cores can
take part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import RunError
from ...flower.messages import FlatTensor
from ...machine.process_limits import available_cores
from .algorithm import Aggregate, Params, Update
from .layout import BLOCK, Block, RowLayout

__all__ = ["Alter", "MeanAggregator", "MeanSum", "as_reals"]

Reals = NDArray[np.float64]
Alter = Callable[[Block, Reals], None]

PARALLEL_VALUES_MIN = 1 << 20
"""Fewer are not worth a thread."""
WIDENING_MAX = 4
"""By how much blocks may be wider than `BLOCK`, which leaves room in the cache for few updates."""
STORED_MAX = 512
"""So many updates in files may wait: each keeps a file open."""


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
    crowded: bool = False
    """Whether waiting updates are held in memory, or are too many files."""
    weight: float = 0.0
    clients: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanAggregator:
    """Computes the mean of the updates' params, weighted by their number of examples.

    Guarantees: sums are float64 (complex128) for every dtype, and the mean is cast once, to the
        params' dtype: integers are rounded half to even, a boolean is true from a mean of 0.5.
        The result depends on the updates and their order alone: not on how they are cut into
        calls, and not on the number of threads. Reads updates by slices only.
        Memory: 1 byte a byte of float32 params, for the mean; 2 if more than `group` updates are
        held in memory, or more than `STORED_MAX` in files. No other copy.
    Edge cases: scalars, tensors without values, and models without tensors.
    """

    group: int = 20
    """How many updates are added up at once."""

    def zero(self, like: Params) -> MeanSum:
        """Return the sum of no updates, for params like these."""
        return MeanSum(layout=RowLayout(like, block=BLOCK))

    def fold(self, accumulator: MeanSum, updates: Sequence[Update]) -> MeanSum:
        """Add updates, in the canonical order of their clients."""
        for update in updates:
            if accumulator.crowded and len(accumulator.waiting) >= self.group:
                self._add_first(accumulator)
            accumulator.waiting.append(update)
            accumulator.crowded |= not update.stored or len(accumulator.waiting) > STORED_MAX
            accumulator.weight += update.weight
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
        mean = self._narrow(accumulator, alter)
        return Aggregate(mean=mean, weight=accumulator.weight, clients=accumulator.clients)

    def _add_first(self, accumulator: MeanSum) -> None:
        """Add the first group of the waiting updates to the sums of the whole row."""
        first = accumulator.sums is None
        sums = np.empty(accumulator.layout.total) if accumulator.sums is None else accumulator.sums
        group = accumulator.waiting[: self.group]
        space = Workspace(self.group, accumulator.layout.width)
        for block, values in _sums_of(accumulator.layout, group, space, accumulator.layout.blocks):
            if first:
                sums[block.start : block.stop] = values
            else:
                sums[block.start : block.stop] += values
        accumulator.sums = sums
        del accumulator.waiting[: self.group]
        accumulator.crowded = not all(update.stored for update in accumulator.waiting)

    def _narrow(self, accumulator: MeanSum, alter: Alter) -> dict[str, NDArray[Any]]:
        """Add the waiting updates and cast the mean to the params' dtypes.

        It takes the sums' place: a value is never written beyond where its sum was, since no
        dtype is wider than its sums.
        """
        layout, sums, weight = accumulator.layout, accumulator.sums, accumulator.weight
        buffer = np.empty(layout.mean_bytes // 8) if sums is None else sums
        tensors = layout.tensors_in(buffer)

        def narrow(blocks: Sequence[Block]) -> None:
            for block, values in _sums_of_waiting(accumulator, self.group, blocks):
                values /= weight
                alter(block, values)
                for tensor, start, stop, offset in block.segments:
                    piece = values[offset : offset + stop - start]
                    _cast(piece, tensors[tensor].reshape(-1), start)

        if sums is None and alter is leave and layout.total >= PARALLEL_VALUES_MIN:
            widening = min(WIDENING_MAX, self.group // len(accumulator.waiting))
            _on_all_cores(narrow, list(layout.cut(BLOCK * max(1, widening))))
        else:  # what takes the place of sums, or is altered, goes from the first to the last
            narrow(layout.blocks)
        accumulator.sums, accumulator.waiting = None, []
        if sums is not None:
            tensors.clear()  # nothing may point into the buffer while it shrinks
            buffer.resize(layout.mean_bytes // 8, refcheck=False)
            tensors = layout.tensors_in(buffer)
        return dict(zip(layout.names, tensors, strict=True))


def _on_all_cores(work: Callable[[Sequence[Block]], None], blocks: Sequence[Block]) -> None:
    """Do work on blocks, each core on a part of them."""
    count = -(-len(blocks) // available_cores())
    shares = [blocks[start : start + count] for start in range(0, len(blocks), count)]
    with ThreadPoolExecutor(len(shares)) as pool:
        list(pool.map(work, shares))


def _sums_of(
    layout: RowLayout, updates: Sequence[Update], space: Workspace, blocks: Sequence[Block]
) -> Iterator[tuple[Block, Reals]]:
    """Yield block by block what a group of updates adds up to.

    The sum lies in the workspace: it is valid until the next one is asked for.
    """
    tensors = [[as_reals(update.params[name]) for name in layout.names] for update in updates]
    weights = np.array([update.weight for update in updates], np.float64)
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
        yield block, _weighted_sum(weights, matrix, out=space.row[:size])


def _sums_of_waiting(
    accumulator: MeanSum, group: int, blocks: Sequence[Block]
) -> Iterator[tuple[Block, Reals]]:
    """Yield block by block what all waiting updates and the sums add up to."""
    waiting, sums = accumulator.waiting, accumulator.sums
    width = max((block.stop - block.start for block in blocks), default=0)
    space = Workspace(min(group, len(waiting)), width)
    first, *others = (
        _sums_of(accumulator.layout, waiting[start : start + group], space, blocks)
        for start in range(0, len(waiting), group)
    )
    total = np.empty(width) if others else None
    for block, values in first:
        if sums is not None:
            values += sums[block.start : block.stop]
        if total is not None:
            part = total[: block.stop - block.start]
            part[:] = values
            for _, more in map(next, others):
                part += more
            values = part
        yield block, values


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
    np.copyto(flat[start : start + len(values)], values, casting="unsafe")
