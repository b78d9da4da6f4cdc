"""How the tensors of a model lie end to end, as one row of real values that is cut into blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from .algorithm import Params

__all__ = ["BLOCK", "Block", "RowLayout", "Segment"]

BLOCK = 30_720
"""Values summed at once: those of 20 updates (5 MB) stay in the cache. A multiple of four for most
numbers of threads, so that BLAS cuts a block at the same places of its inner loop however many
it has: the sum does not depend on it."""


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


class RowLayout:
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
        self.blocks = list(self.cut(block))

    def tensors_in(self, buffer: NDArray[np.float64]) -> list[NDArray[Any]]:
        """Return the tensors that lie in `mean_bytes` of memory, each from a multiple of 8."""
        memory = buffer.view(np.uint8)
        return [
            memory[offset : offset + size].view(dtype).reshape(shape)
            for offset, size, dtype, shape in zip(
                self.offsets, self.bytes, self.dtypes, self.shapes, strict=True
            )
        ]

    def cut(self, width: int) -> Iterator[Block]:
        """Yield blocks of so many values, and a last one of what is left."""
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
