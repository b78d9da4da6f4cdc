"""What a sweep found: the metrics of its combinations, over seeds if they were varied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from ..reports.client_record import lower_is_better
from ..strategies.rounds.progress import PREFERRED
from .combinations import Combination
from .plan import RunProgress

__all__ = ["SEED", "Group", "Spread", "best_group", "compared_metric", "groups_of"]

SEED = "run.seed"
"""Runs that differ in this alone are repetitions."""
PARTS = ("server", "evaluate", "train")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A metric's mean over runs, and the standard deviation of a sample of them (n - 1).

    Edge cases: of one run the deviation is None; values that are not finite do not count.
    """

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The runs that differ in their seed alone, and the metrics of the finished ones."""

    settings: Mapping[str, str]
    runs: tuple[str, ...]
    finished: int
    metrics: Mapping[str, Spread]


def groups_of(runs: Sequence[tuple[Combination, RunProgress]]) -> list[Group]:
    """Return the combinations without their seeds, in the sweep's order."""
    members: dict[tuple[tuple[str, str], ...], list[tuple[Combination, RunProgress]]] = {}
    for combination, state in runs:
        key = tuple((name, value) for name, value in combination.values.items() if name != SEED)
        members.setdefault(key, []).append((combination, state))
    return [_group(dict(key), found) for key, found in members.items()]


def _group(settings: Mapping[str, str], runs: Sequence[tuple[Combination, RunProgress]]) -> Group:
    finished = [_metrics(state.final or {}) for _, state in runs if state.status == "finished"]
    names = {name: None for metrics in finished for name in metrics}
    return Group(
        settings=settings,
        runs=tuple(combination.name for combination, _ in runs),
        finished=len(finished),
        metrics={
            name: _spread([metrics[name] for metrics in finished if name in metrics])
            for name in names
        },
    )


def _metrics(final: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{part}.{name}": float(value)
        for part in PARTS
        for name, value in (final.get(part) or {}).items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _spread(values: Sequence[float]) -> Spread:
    deviation = stdev(values) if len(values) > 1 else None
    return Spread(mean=fmean(values), std=deviation, count=len(values))


def compared_metric(groups: Sequence[Group], wanted: str | None) -> str | None:
    """Return the metric that decides: the one that is wanted, or the first usual one."""
    known = {name for group in groups for name in group.metrics}
    candidates = [wanted] if wanted else [name for name, _ in PREFERRED]
    return next((name for name in candidates if name in known), None)


def best_group(groups: Sequence[Group], metric: str) -> Group | None:
    """Return the group with the best mean; of equal ones the first."""
    rated = [group for group in groups if metric in group.metrics]
    if not rated:
        return None
    sign = -1 if lower_is_better(metric) else 1
    return max(rated, key=lambda group: sign * group.metrics[metric].mean)
