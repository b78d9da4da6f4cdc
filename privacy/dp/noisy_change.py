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
class Part:
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
    made: dict[str, NDArray[Any]] = {}
    parts: list[Part] = []
    used = 0
    for name, old in params.items():
        made[name] = np.empty_like(old, order="C") if is_floating(old.dtype) else old
        if made[name] is old:
            continue
        before, after, out = (_reals(values) for values in (old, exact[name], made[name]))
        for start in range(0, before.size, PART):
            here = slice(start, min(start + PART, before.size))
            noise = None if drawn is None else drawn[used + here.start : used + here.stop]
            parts.append(Part(before=before[here], after=after[here], out=out[here], drawn=noise))
        used += before.size
    work_through(
        len(parts),
        lambda number: _fill(parts[number], number, share, stddev, seed),
        values=used,
    )
    return made


def values_in(params: Params) -> int:
    """Return how many real values get noise."""
    return sum(_reals(old).size for old in params.values() if is_floating(old.dtype))


def _fill(part: Part, number: int, share: float, stddev: float, seed: bytes) -> None:
    generator = generator_from(seed, number)
    changes, noises = np.empty(BLOCK), np.empty(BLOCK)
    for start in range(0, part.before.size, BLOCK):
        here = slice(start, min(start + BLOCK, part.before.size))
        before = part.before[here]
        change, noise = changes[: before.size], noises[: before.size]
        np.subtract(part.after[here], before, out=change)
        change *= share
        if part.drawn is None:
            generator.standard_normal(out=noise)
        else:
            noise[:] = part.drawn[here]
        noise *= stddev
        change += noise
        change += before
        part.out[here] = change


def _reals(values: NDArray[Any]) -> NDArray[Any]:
    row = np.ascontiguousarray(values).reshape(-1)
    return row.view(row.real.dtype) if row.dtype.kind == "c" else row
