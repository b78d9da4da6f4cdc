"""How a run ended: Flower's `Result`, and a little more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from ..algorithms.metrics import Metrics
from .recorder import Row

__all__ = ["RunResult", "metric_record", "result_of"]

Status = Literal["finished", "stopped"]


@dataclass(repr=False)
class RunResult(Result):
    """Flower's `Result`, and how the run ended.

    Attributes:
        status: "finished" or "stopped" (a run that fails raises).
        cause: why it ended before its last round, or "".
        rounds: the last round that was committed.
        best: the best round (see `Checkpoint.best`), or None.
        history: the rows of all rounds.
    """

    status: Status = "finished"
    cause: str = ""
    rounds: int = 0
    best: Mapping[str, Any] | None = None
    history: Sequence[Row] = ()


def result_of(
    history: Sequence[Row],
    *,
    arrays: ArrayRecord,
    rounds: int,
    initial: Metrics,
    status: Status,
    cause: str,
    best: Mapping[str, Any] | None,
) -> RunResult:
    """Return the result of a run with these rows; `initial` was measured before round 1."""
    central = [(0, initial), *((row["round"], row["server"]) for row in history)]
    return RunResult(
        arrays=arrays,
        train_metrics_clientapp=_curve((row["round"], row["train"]) for row in history),
        evaluate_metrics_clientapp=_curve((row["round"], row["evaluate"]) for row in history),
        evaluate_metrics_serverapp=_curve(central),
        status=status,
        cause=cause,
        rounds=rounds,
        best=best,
        history=tuple(history),
    )


def metric_record(metrics: Metrics) -> MetricRecord:
    """Return metrics as Flower has them; what is not finite is NaN."""
    return MetricRecord({name: math.nan if v is None else v for name, v in metrics.items()})


def _curve(points: Iterable[tuple[int, Metrics]]) -> dict[int, MetricRecord]:
    return {number: metric_record(metrics) for number, metrics in points if metrics}
