"""The weighted mean of updates, as a streaming fold: memory for one sum, whoever many send.

All tensors of a model are laid end to end, as one row of real values (a complex one is two).
The row is worked through in blocks: the block of up to 20 updates is cast to a float64 matrix
that stays in the cache, and one vector-matrix product adds them up. Updates that are held in
memory are added to a float64 sum of the whole row, group by group; those that lie in files wait
for the end, and are then added block by block, so that they need no such sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, RunError
from ..flower import FlatTensor
from .algorithm import Aggregate, Params, Update

__all__ = ["Block", "Layout", "MeanAggregator", "MeanSum", "as_reals"]

Reals = NDArray[np.float64]

BLOCK = 61_440
"""Values summed at once: the matrix (10 MB) stays in the cache. A multiple of four for most
numbers of threads, so that BLAS cuts a block at the same places of its inner loop however
many it has: the sum does not depend on it."""


STORED_MAX = 512
"""So many updates in files may wait: each keeps a file open."""


class Segment(NamedTuple):
    """A piece of one tensor within a block: values `start:stop` of it, at `offset` of the block."""

    tensor: int
    start: int
    stop: int
    offset: int


@dataclass(frozen=True, slots=True)
class Block:
    """Values `start:stop` of the whole row, and the pieces of tensors that they are."""

    start: int
    stop: int
    segments: Sequence[Segment]


class Layout:
    """Where the tensors of a model lie in one row of real values."""

    def __init__(self, like: Params, *, block: int = BLOCK) -> None:
        self.names = list(like)
        self.dtypes = [like[name].dtype for name in like]
        self.shapes = [tuple(like[name].shape) for name in like]
        for name, dtype in zip(self.names, self.dtypes, strict=True):
            if dtype.itemsize > (16 if dtype.kind == "c" else 8):
                raise ConfigError(f"tensor {name!r} has dtype {dtype.name}, wider than float64")
        self.reals = [2 if dtype.kind == "c" else 1 for dtype in self.dtypes]
        values = [math.prod(shape) for shape in self.shapes]
        self.sizes = [size * reals for size, reals in zip(values, self.reals, strict=True)]
        self.bytes = [
            size * dtype.itemsize for size, dtype in zip(values, self.dtypes, strict=True)
        ]
        *self.offsets, self.mean_bytes = accumulate(
            (-(-size // 8) * 8 for size in self.bytes), initial=0
        )
        self.total = sum(self.sizes)
        self.width = min(block, self.total)
        self.blocks = list(self._cut(block))

    def tensors_in(self, buffer: Reals) -> list[NDArray[Any]]:
        """Return the tensors that lie in `mean_bytes` of memory, each from a multiple of 8."""
        memory = buffer.view(np.uint8)
        return [
            memory[offset : offset + size].view(dtype).reshape(shape)
            for offset, size, dtype, shape in zip(
                self.offsets, self.bytes, self.dtypes, self.shapes, strict=True
            )
        ]

    def _cut(self, width: int) -> Iterator[Block]:
        segments: list[Segment] = []
        start = filled = 0
        for tensor, size in enumerate(self.sizes):
            done = 0
            while done < size:
                step = min(size - done, width - filled)
                segments.append(Segment(tensor, done, done + step, filled))
                done, filled = done + step, filled + step
                if filled == width:
                    yield Block(start, start + filled, segments)
                    start, filled, segments = start + filled, 0, []
        if filled:
            yield Block(start, start + filled, segments)


@dataclass(slots=True, kw_only=True)
class MeanSum:
    """The accumulator: what has been summed up so far, and the updates that wait to be."""

    layout: Layout
    scratch: Reals
    """A block of a group of updates, one after the other."""
    row: Reals
    """The block's weighted sum."""
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
        layout = Layout(like)
        scratch = np.empty(self.group * layout.width)
        return MeanSum(layout=layout, scratch=scratch, row=np.empty(layout.width))

    def fold(self, accumulator: MeanSum, updates: Sequence[Update]) -> MeanSum:
        """Add updates, in the canonical order of their clients."""
        for update in updates:
            if accumulator.crowded and len(accumulator.waiting) >= self.group:
                _add_first(accumulator, self.group)
            accumulator.waiting.append(update)
            accumulator.crowded |= not update.stored or len(accumulator.waiting) > STORED_MAX
            accumulator.weight += update.weight
            accumulator.clients += update.clients
        while accumulator.crowded and len(accumulator.waiting) > self.group:
            _add_first(accumulator, self.group)
        return accumulator

    def finish(self, accumulator: MeanSum) -> Aggregate:
        """Return the mean, in the memory of the accumulator, which is used up.

        Raises:
            RunError: no updates were folded.
        """
        if not accumulator.waiting:
            raise RunError("there are no updates to aggregate")
        mean = _narrow(accumulator, self.group)
        return Aggregate(mean=mean, weight=accumulator.weight, clients=accumulator.clients)


def _sums_of(accumulator: MeanSum, updates: Sequence[Update]) -> Iterator[tuple[Block, Reals]]:
    """Yield block by block what a group of updates adds up to.

    The sum lies in scratch space: it is valid until the next one is asked for.
    """
    names = accumulator.layout.names
    tensors = [[as_reals(update.params[name]) for name in names] for update in updates]
    weights = np.array([update.weight for update in updates], np.float64)
    for block in accumulator.layout.blocks:
        size = block.stop - block.start
        flat = accumulator.scratch[: len(updates) * size]
        pieces = [
            parts[tensor][start:stop]
            for parts in tensors
            for tensor, start, stop, _ in block.segments
        ]
        np.concatenate(pieces, out=flat, casting="unsafe")
        matrix = flat.reshape(len(updates), size)
        yield block, _weighted_sum(weights, matrix, out=accumulator.row[:size])


def _sums_of_waiting(accumulator: MeanSum, group: int) -> Iterator[tuple[Block, Reals]]:
    """Yield block by block what all waiting updates and the sums add up to."""
    waiting, sums = accumulator.waiting, accumulator.sums
    first, *others = (
        _sums_of(accumulator, waiting[start : start + group])
        for start in range(0, len(waiting), group)
    )
    total = np.empty(accumulator.layout.width) if others else None
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
    if matrix.shape[1] == BLOCK:
        np.dot(weights, matrix, out=out)
    else:  # BLAS may treat the last few columns differently, depending on its threads
        np.einsum("u,uv->v", weights, matrix, out=out)
    return out


def _add_first(accumulator: MeanSum, group: int) -> None:
    """Add the first group of the waiting updates to the sums of the whole row."""
    first = accumulator.sums is None
    sums = np.empty(accumulator.layout.total) if accumulator.sums is None else accumulator.sums
    for block, values in _sums_of(accumulator, accumulator.waiting[:group]):
        if first:
            sums[block.start : block.stop] = values
        else:
            sums[block.start : block.stop] += values
    accumulator.sums = sums
    del accumulator.waiting[:group]
    accumulator.crowded = not all(update.stored for update in accumulator.waiting)


def _narrow(accumulator: MeanSum, group: int) -> dict[str, NDArray[Any]]:
    """Add the waiting updates and cast the mean to the params' dtypes, in the sums' memory.

    A value is never written beyond where its sum was, since no dtype is wider than its sums.
    """
    layout, sums, weight = accumulator.layout, accumulator.sums, accumulator.weight
    buffer = np.empty(layout.mean_bytes // 8) if sums is None else sums
    tensors = layout.tensors_in(buffer)
    for block, values in _sums_of_waiting(accumulator, group):
        values /= weight
        for segment in block.segments:
            piece = values[segment.offset : segment.offset + segment.stop - segment.start]
            _cast(piece, tensors[segment.tensor].reshape(-1), segment.start)
    accumulator.sums, accumulator.waiting = None, []
    if sums is not None:
        del tensors  # nothing may point into the buffer while it shrinks
        buffer.resize(layout.mean_bytes // 8, refcheck=False)
        tensors = layout.tensors_in(buffer)
    return dict(zip(layout.names, tensors, strict=True))


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
