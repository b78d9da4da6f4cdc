"""How far an update moves the params, and scaling it down to a limit.

Only floating-point tensors count: integers and booleans are counters and masks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...flower.messages import FlatTensor
from .algorithm import Params
from .server_optimizers import is_floating

__all__ = ["ScaledDelta", "clip_delta", "delta_norm_l2", "delta_squares", "moved_delta"]

BLOCK = 65_536


def delta_norm_l2(params: Params, tensors: Mapping[str, FlatTensor]) -> float:
    """Return the L2 norm of `tensors - params` over all floating-point tensors.

    Guarantees: as `delta_squares`.
    """
    return math.sqrt(sum(delta_squares(params, tensors).values()))


def delta_squares(params: Params, tensors: Mapping[str, FlatTensor]) -> dict[str, float]:
    """Return the squared L2 norm of each floating-point tensor's change.

    Guarantees: summed in float64, in an order that depends on nothing but the tensors' names
        and sizes. Reads both by slices.
    """
    squares: dict[str, float] = {}
    for name, old in params.items():
        if not is_floating(old.dtype):
            continue
        row, tensor, total = old.reshape(-1), tensors[name], 0.0
        wide = np.complex128 if old.dtype.kind == "c" else np.float64
        for start in range(0, row.size, BLOCK):
            delta = tensor[start : start + BLOCK].astype(wide)
            delta -= row[start : start + BLOCK].astype(wide)
            reals = delta.view(np.float64)
            with np.errstate(over="ignore"):
                total += float(np.einsum("i,i->", reals, reals))
        squares[name] = total
    return squares


def clip_delta(
    params: Params, tensors: Mapping[str, FlatTensor], *, factor: float
) -> dict[str, FlatTensor]:
    """Return `params + factor * (tensors - params)`; as `moved_delta`."""
    return moved_delta(params, tensors, onto=params, factor=factor)


def moved_delta(
    params: Params, tensors: Mapping[str, FlatTensor], *, onto: Params, factor: float
) -> dict[str, FlatTensor]:
    """Return `onto + factor * (tensors - params)`, computed where and when it is read.

    Integer and boolean tensors stay as they are.
    """
    return {
        name: ScaledDelta(params[name], tensor, factor, onto=onto[name])
        if is_floating(params[name].dtype)
        else tensor
        for name, tensor in tensors.items()
    }


class ScaledDelta:
    """A `FlatTensor`: an old tensor's scaled change to a new one, added to a third (or the old).

    It is of the new one's dtype, or `exact`: in float64 (complex128), where it is not rounded so
    that a bound of the delta would not hold any more.
    """

    def __init__(
        self,
        old: NDArray[Any],
        new: FlatTensor,
        factor: float,
        *,
        onto: NDArray[Any] | None = None,
        exact: bool = False,
    ) -> None:
        self._old, self._new, self._factor = old.reshape(-1), new, factor
        self._onto = self._old if onto is None else onto.reshape(-1)
        self._wide = np.dtype(np.complex128 if new.dtype.kind == "c" else np.float64)
        self._dtype = self._wide if exact else new.dtype

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._new.shape

    def __getitem__(self, values: slice) -> NDArray[Any]:
        wide = self._wide
        made: NDArray[Any] = self._new[values].astype(wide)
        old: NDArray[Any] = self._old[values].astype(wide)
        onto = old if self._onto is self._old else self._onto[values].astype(wide)
        made -= old
        with np.errstate(over="ignore"):  # the caller checks the outcome
            made *= self._factor
            made += onto
            return made.astype(self.dtype)

    def numpy(self) -> NDArray[Any]:
        made = np.empty(self._old.size, self.dtype)
        for start in range(0, made.size, BLOCK):
            made[start : start + BLOCK] = self[start : start + BLOCK]
        return made.reshape(self.shape)
