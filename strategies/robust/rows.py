"""A round's updates as the rows of a matrix: what each changes of the params.

The matrix is never whole in memory: it is read block by block, as often as it is needed, from
wherever the updates lie.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithms.algorithm import Params, Update
from ..algorithms.layout import Block, RowLayout
from ..algorithms.mean import as_reals
from ..algorithms.server_optimizers import is_floating
from .geometry import Geometry, Reals

__all__ = ["DeltaRows"]

BLOCK = 8_192
"""Values worked on at once: the block of a hundred updates (6.5 MB) stays in the cache."""
DELTA_MAX = 1e37
"""Larger changes count as this one, so that no square or sum overflows; no honest one is."""


class DeltaRows:
    """The changes of the floating-point params, one row an update, in the updates' order."""

    def __init__(self, like: Params, updates: Sequence[Update]) -> None:
        self._like = {name: old for name, old in like.items() if is_floating(old.dtype)}
        self._updates = updates
        self._layout = RowLayout(self._like, block=BLOCK)
        self._scratch = np.empty((len(updates) + 1) * self._layout.width)
        names = self._layout.names
        self._rows: list[list[Any]] = [
            [as_reals(update.params[name]) for name in names] for update in updates
        ]
        self._base: list[Any] = [_flat(old) for old in self._like.values()]
        wide = any(dtype.itemsize > 4 * (1 + (dtype.kind == "c")) for dtype in self._layout.dtypes)
        self.dtype: np.dtype[Any] = np.dtype(np.float64 if wide else np.float32)
        """Holds a change without loss: of half the size if the params allow it."""

    def geometry(self) -> Geometry:
        """Return the inner products of the rows, summed in float64."""
        count, seed = len(self._updates), 0
        products = np.zeros((count, count))
        for number, (_, deltas) in enumerate(self._blocks()):
            products += deltas @ deltas.T
            if number == 0:
                seed = zlib.crc32(deltas.tobytes())
        clients = [update.client for update in self._updates]
        return Geometry(products=products, clients=clients, seed=seed)

    def moved(self, combine: Callable[[Reals], Reals]) -> dict[str, NDArray[Any]]:
        """Return the params after a change that `combine` makes of blocks of the rows.

        Shapes: `combine` takes (rows, values) and returns (values,).
        """
        params = {name: np.empty(old.shape, old.dtype) for name, old in self._like.items()}
        flat = [_flat(values) for values in params.values()]
        for block, deltas in self._blocks():
            delta = combine(deltas)
            for tensor, start, stop, offset in block.segments:
                old = self._base[tensor][start:stop]
                flat[tensor][start:stop] = old + delta[offset : offset + stop - start]
        return params

    def _blocks(self) -> Iterator[tuple[Block, Reals]]:
        """Yield the blocks' changes, in scratch space: each is valid until the next one."""
        count, every = len(self._updates), [*self._rows, self._base]
        for block in self._layout.blocks:
            size = block.stop - block.start
            flat = self._scratch[: (count + 1) * size]
            pieces = [
                parts[tensor][start:stop]
                for parts in every
                for tensor, start, stop, _ in block.segments
            ]
            np.concatenate(pieces, out=flat, casting="unsafe")
            matrix = flat.reshape(count + 1, size)
            deltas = matrix[:count]
            deltas -= matrix[count]
            np.clip(deltas, -DELTA_MAX, DELTA_MAX, out=deltas)
            yield block, deltas


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array's values as a row of reals that shares its memory where it can."""
    row = array.reshape(-1)
    return row.view(row.real.dtype) if row.dtype.kind == "c" else row
