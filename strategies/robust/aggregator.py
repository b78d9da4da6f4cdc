"""Runs a robust rule over a round's updates: keeps them all, and combines them at the end."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, RunError
from ..algorithms.algorithm import Aggregate, Algorithm, Params, Update
from ..algorithms.fedavg import fedavg
from ..algorithms.mean import MeanAggregator
from ..algorithms.server_optimizers import is_floating
from .geometry import Mixing, Reals
from .rows import DeltaRows
from .rules import AggregationRule

__all__ = ["Collected", "RobustAggregator", "robust"]


@dataclass(slots=True, kw_only=True)
class Collected:
    """The accumulator: the params that were sent, and the updates so far."""

    like: Params
    updates: list[Update] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustAggregator:
    """Computes what a rule makes of the clients' deltas, each counting the same.

    The number of examples is the client's own claim, so nothing here depends on it.

    Guarantees: the result depends on the updates and their order alone. Inner products and sums
        are float64. Integer and boolean tensors become the median of the clients'.
        Memory: a block of every update, beside the updates themselves.
    """

    rule: AggregationRule

    @property
    def group(self) -> int:
        """All updates are kept until the end."""
        return sys.maxsize

    def zero(self, like: Params) -> Collected:
        """Return the collection of no updates, for params like these."""
        return Collected(like=like)

    def fold(self, accumulator: Collected, updates: Sequence[Update]) -> Collected:
        """Keep updates, in the canonical order of their clients.

        Raises:
            RunError: one stands for several clients.
        """
        for update in updates:
            if update.clients != 1:
                raise RunError(
                    f"{self.rule.name} needs every single update, and client {update.client} "
                    f"sent one that stands for {update.clients}"
                )
            accumulator.updates.append(update)
        return accumulator

    def finish(self, accumulator: Collected) -> Aggregate:
        """Return the params as the rule has them.

        Raises:
            RunError: there are fewer updates than the rule needs, or the trusted one is missing.
        """
        updates, like = accumulator.updates, accumulator.like
        if len(updates) < self.rule.clients_min:
            raise RunError(
                f"{self.rule.name} needs the updates of at least {self.rule.clients_min} clients, "
                f"and {len(updates)} are valid; raise run.min_clients and run.cohort, or lower "
                "robust.byzantine"
            )
        rows = DeltaRows(like, updates)
        floating = rows.moved(_Combination(self.rule, rows))
        mean = {
            name: floating[name] if name in floating else _middle(old, name, updates)
            for name, old in like.items()
        }
        weight = math.fsum(update.weight for update in updates)
        return Aggregate(mean=mean, weight=weight, clients=len(updates))


def robust(algorithm: Algorithm | None = None, *, rule: AggregationRule) -> Algorithm:
    """Return an algorithm, by default FedAvg, that aggregates by a robust rule instead of the mean.

    Whatever the algorithm does with the mean, a server optimizer's step for instance, it does
    with what the rule returns.

    Raises:
        ConfigError: the algorithm aggregates something else than a mean of params.
    """
    inner = algorithm or fedavg()
    if inner.auxiliary or not isinstance(inner.aggregator, MeanAggregator):
        raise ConfigError(
            f"{inner.name} aggregates in its own way, which {rule.name} would replace; use "
            "robust aggregation with fedavg or fedprox"
        )
    return replace(
        inner,
        name=f"{inner.name} with {rule.name}",
        aggregator=RobustAggregator(rule=rule),
        linear=False,
    )


class _Combination:
    """What a rule makes of a block of rows: its mixings as one matrix, then its reduction."""

    def __init__(self, rule: AggregationRule, rows: DeltaRows) -> None:
        self._reduce, self._dtype = rule.reduce, rows.dtype
        self._weights = _product(rule.mixings, rows) if rule.mixings else None
        self._picked = None if self._weights is None else _picked(self._weights)

    def __call__(self, deltas: Reals) -> Reals:
        if self._reduce is None:
            assert self._weights is not None, "a rule without a reduction ends with one row"
            return np.asarray(self._weights[0] @ deltas)
        narrow = deltas.astype(self._dtype, copy=False)
        if self._weights is None:
            columns = np.ascontiguousarray(narrow.T)
        elif self._picked is not None:
            columns = np.ascontiguousarray(narrow[self._picked].T)
        else:
            columns = narrow.T @ self._weights.T.astype(self._dtype)
        columns.sort(axis=1)
        return self._reduce(columns)


def _product(mixings: Sequence[Mixing], rows: DeltaRows) -> Reals:
    """Return the weights of the original rows after all mixings."""
    geometry = rows.geometry()
    weights = np.eye(geometry.count)
    for mixing in mixings:
        step = mixing(geometry)
        weights, geometry = step @ weights, geometry.mixed(step)
    return weights


def _picked(weights: Reals) -> NDArray[np.intp] | None:
    """Return which row each of these is, if they are rows as they were: no product is needed."""
    single = (np.count_nonzero(weights, axis=1) == 1) & (weights.max(axis=1) == 1.0)
    return weights.argmax(axis=1) if single.all() else None


def _middle(old: NDArray[Any], name: str, updates: Sequence[Update]) -> NDArray[Any]:
    """Return the lower median of a tensor of integers or booleans, which is one of the values."""
    assert not is_floating(old.dtype)
    held = np.sort(np.stack([update.params[name].numpy() for update in updates]), axis=0)
    return np.asarray(held[(len(updates) - 1) // 2], old.dtype)
