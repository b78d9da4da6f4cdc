"""One pass over the params: old + share * (exact - old) + noise, block by block, in all cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...strategies.algorithm import Params
from ...strategies.server_optimizers import is_floating
from .noise import generator_from
from .parts import BLOCK, PART, work_through

__all__ = ["noisy_params", "values_in"]

Reals = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some of a tensor's values, and their noise if it is drawn already."""

    before: Reals
    after: Reals
    out: Reals
    drawn: NDArray[np.float32] | None


def noisy_params(
    params: Params,
    exact: Params,
    *,
    share: float,
    stddev: float,
    seed: bytes,
    drawn: NDArray[np.float32] | None,
) -> dict[str, NDArray[Any]]:
    """Return the params after `share` of the change to `exact`, with noise on every value.

    The noise is normal, from `seed`, or it is `stddev` times what is `drawn`, tensor by tensor.

    Edge cases: tensors that are not floating-point stay what they were; a complex value has noise
        on both parts.
    """
    made = {
        name: np.empty_like(old, order="C") if is_floating(old.dtype) else old
        for name, old in params.items()
    }
    parts = _cut(params, exact, made, drawn)

    def work(number: int) -> None:
        generator, scratch = generator_from(seed, number), np.empty((2, BLOCK))
        for piece in parts[number]:
            _fill(piece, share, stddev, generator, scratch)

    work_through(len(parts), work, values=values_in(params))
    return made


def values_in(params: Params) -> int:
    """Return how many real values get noise."""
    return sum(_reals(old).size for old in params.values() if is_floating(old.dtype))


def _cut(
    params: Params, exact: Params, made: Params, drawn: NDArray[np.float32] | None
) -> list[list[Piece]]:
    """Return all tensors' values end to end, so many at a time."""
    parts: list[list[Piece]] = []
    used, room = 0, 0
    for name, old in params.items():
        if made[name] is old:
            continue
        before, after, out = (_reals(values) for values in (old, exact[name], made[name]))
        start = 0
        while start < before.size:
            if room == 0:
                parts.append([])
                room = PART
            here = slice(start, min(start + room, before.size))
            taken = here.stop - start
            noise = None if drawn is None else drawn[used : used + taken]
            parts[-1].append(
                Piece(before=before[here], after=after[here], out=out[here], drawn=noise)
            )
            start, used, room = here.stop, used + taken, room - taken
    return parts


def _fill(
    piece: Piece,
    share: float,
    stddev: float,
    generator: np.random.Generator,
    scratch: NDArray[np.float64],
) -> None:
    for start in range(0, piece.before.size, BLOCK):
        here = slice(start, min(start + BLOCK, piece.before.size))
        before = piece.before[here]
        change, noise = scratch[:, : before.size]
        np.subtract(piece.after[here], before, out=change)
        if share != 1.0:
            change *= share
        if piece.drawn is None:
            generator.standard_normal(out=noise)
        else:
            noise[:] = piece.drawn[here]
        noise *= stddev
        change += noise
        change += before
        piece.out[here] = change


def _reals(values: NDArray[Any]) -> NDArray[Any]:
    row = np.ascontiguousarray(values).reshape(-1)
    return row.view(row.real.dtype) if row.dtype.kind == "c" else row
