"""Alters a mean block by block while it is computed: old + share * (mean - old), plus noise."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....strategies.algorithms.algorithm import Params
from ....strategies.algorithms.layout import Block
from ....strategies.algorithms.server_optimizers import is_floating
from .noise import generator_from
from .parts import PART, threads_for

__all__ = ["NoisyBlocks", "ShareOfDelta", "normals"]

Reals = NDArray[np.float64]


class ShareOfDelta:
    """Scales the delta of a mean from `params` by `share`, block by block."""

    def __init__(self, params: Params, share: float) -> None:
        self._params, self._share = params, share
        self._old = [_reals(values) for values in params.values()]
        self._moves = [is_floating(values.dtype) for values in params.values()]

    def __call__(self, block: Block, values: Reals) -> None:
        """Alter a block."""
        if self._share == 1.0:
            return
        for tensor, start, stop, offset in block.segments:
            if self._moves[tensor]:
                part, old = values[offset : offset + stop - start], self._old[tensor][start:stop]
                part -= old
                part *= self._share
                part += old

    def settled(self, mean: Params) -> Params:
        """Return the mean, with the old values of tensors that are not floating-point."""
        pairs = zip(self._params.items(), self._moves, strict=True)
        return {name: mean[name] if moves else old for (name, old), moves in pairs}


class NoisyBlocks(ShareOfDelta):
    """Scales the delta of a mean and adds noise, block by block, from the first to the last.

    `noise` yields standard normals for all values of the params, tensor by tensor, in pieces of
    any size. A complex value gets noise on both parts.
    """

    def __init__(
        self,
        params: Params,
        *,
        share: float,
        noise_stddev: float,
        noise: Iterator[NDArray[Any]],
        width: int,
    ) -> None:
        super().__init__(params, share)
        self._noise_stddev, self._noise = noise_stddev, noise
        self._piece: NDArray[Any] = np.empty(0)
        self._scratch = np.empty(width)

    def __call__(self, block: Block, values: Reals) -> None:
        """Alter the next block."""
        super().__call__(block, values)
        done = 0
        while done < len(values):
            if not len(self._piece):
                self._piece = next(self._noise)
            noise = self._scratch[: min(len(values) - done, len(self._piece))]
            taken, self._piece = self._piece[: len(noise)], self._piece[len(noise) :]
            np.multiply(taken, self._noise_stddev, out=noise, dtype=np.float64)
            values[done : done + len(noise)] += noise
            done += len(noise)


@contextmanager
def normals(seed: bytes, size: int) -> Iterator[Iterator[Reals]]:
    """Yield `size` standard normals, in pieces, which several threads compute ahead.

    Guarantees: the values depend on the seed alone, not on the number of threads.
    """

    def piece(number: int) -> Reals:
        return generator_from(seed, number).standard_normal(min(PART, size - number * PART))

    parts = range(-(-size // PART))
    threads = threads_for(size)
    if threads == 1:
        yield map(piece, parts)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield _ahead(pool, [*parts], piece, threads + 1)


def _ahead(pool: ThreadPoolExecutor, numbers: list[int], piece: Any, count: int) -> Iterator[Reals]:
    """Yield pieces in order, with `count` more computed ahead."""
    begun: deque[Future[Reals]] = deque()
    for number in numbers:
        begun.append(pool.submit(piece, number))
        if len(begun) > count:
            yield begun.popleft().result()
    for future in begun:
        yield future.result()


def _reals(values: NDArray[Any]) -> NDArray[Any]:
    row = np.ascontiguousarray(values).reshape(-1)
    return row.view(row.real.dtype) if row.dtype.kind == "c" else row
