"""Converts a client's update to one vector for a secure sum, and the sum to a mean update.

The vector is the delta of every param, in the order of the params, followed by two values per
metric: the metric, and 1 if it was reported. All but the deltas of floating-point params are
scaled, so that the clip of the sum is a larger bound for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import UpdateError
from ....flower.messages import FlatTensor
from ....strategies.algorithms.algorithm import Params
from ....strategies.algorithms.metrics import Metrics
from ....strategies.algorithms.server_optimizers import is_floating
from .terms import SecureTerms

__all__ = ["VectorLayout"]


class VectorLayout:
    """The positions of params and metrics in the vector; server and clients compute the same ones.

    Shapes: a vector has `length` values. A complex param takes two values.
    Edge cases: a noisy sum has only floating-point params; others keep their values. Otherwise,
        integers are rounded half to even, and a boolean is true if clients with most of the weight
        report true; both change by at most `metrics_max`, floating-point params by at most `value_bound`.
        A metric is averaged over the clients that report it, and is None if none does.
    """

    def __init__(self, params: Params, terms: SecureTerms) -> None:
        self._params, self._terms = params, terms
        self._sizes = {
            name: values.size * (2 if values.dtype.kind == "c" else 1)
            for name, values in params.items()
            if terms.noise_multiplier is None or is_floating(values.dtype)
        }
        self._deltas = sum(self._sizes.values())
        self.length = self._deltas + 2 * len(terms.metrics)

    def vector(
        self, trained: Mapping[str, FlatTensor], metrics: Metrics
    ) -> NDArray[np.floating[Any]]:
        """Return a client's vector.

        Raises:
            UpdateError: the params are not finite, or their names, shapes or dtypes differ from
                the model's.
        """
        vector, start = np.zeros(self.length, np.float32), 0
        for name, old in self._params.items():
            new = trained.get(name)
            if new is None or new.shape != old.shape or new.dtype != old.dtype:
                raise UpdateError(f"tensor {name!r} must be {old.dtype.name} {old.shape}")
            delta = _as_reals(new.numpy()) - _as_reals(old)
            if not np.isfinite(delta).all():
                raise UpdateError(f"tensor {name!r} has values that are not finite")
            if name not in self._sizes:
                continue
            vector[start : start + delta.size] = delta * self._scale_of(old.dtype)
            start += delta.size
        if strangers := trained.keys() - self._params.keys():
            raise UpdateError(f"tensor {min(strangers)!r} is not one of the model's")
        for place, name in enumerate(self._terms.metrics):
            value = metrics.get(name)
            if value is not None and math.isfinite(value):
                at = self._deltas + 2 * place
                bounded = max(-self._terms.metrics_max, min(self._terms.metrics_max, value))
                vector[at : at + 2] = bounded * self._wide, self._terms.value_bound
        return vector

    def mean(
        self, sums: NDArray[np.float64], weight: int
    ) -> tuple[dict[str, NDArray[Any]], Metrics]:
        """Return the mean params and metrics of the clients in a sum."""
        params: dict[str, NDArray[Any]] = {}
        start = 0
        for name, old in self._params.items():
            if name not in self._sizes:
                params[name] = old
                continue
            delta = sums[start : start + self._sizes[name]] / (weight * self._scale_of(old.dtype))
            params[name] = _moved(old, delta)
            start += self._sizes[name]
        pairs = sums[self._deltas :].reshape(-1, 2)
        return params, self._means(self._terms.metrics, pairs)

    def _means(self, names: Sequence[str], pairs: NDArray[np.float64]) -> Metrics:
        return {
            name: float(total / self._wide / (present / self._terms.value_bound))
            if present
            else None
            for name, (total, present) in zip(names, pairs.tolist(), strict=True)
        }

    def _scale_of(self, dtype: np.dtype[Any]) -> float:
        return 1.0 if is_floating(dtype) else self._wide

    @property
    def _wide(self) -> float:
        return self._terms.value_bound / self._terms.metrics_max


def _as_reals(values: NDArray[Any]) -> NDArray[np.float64]:
    row = np.ascontiguousarray(values).reshape(-1)
    reals: NDArray[Any] = row.view(row.real.dtype) if row.dtype.kind == "c" else row
    return reals.astype(np.float64)


def _moved(old: NDArray[Any], delta: NDArray[np.float64]) -> NDArray[Any]:
    """Return params plus a delta, in the params' dtype."""
    moved = _as_reals(old) + delta
    if old.dtype.kind == "c":
        return moved.view(np.complex128).astype(old.dtype).reshape(old.shape)
    if old.dtype.kind == "b":
        return (moved >= 0.5).reshape(old.shape)
    if old.dtype.kind in "iu":
        moved = np.rint(moved)
    return moved.astype(old.dtype).reshape(old.shape)
