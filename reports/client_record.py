"""clients.jsonl: how a run went for the single clients, kept as a few numbers a round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .columns import COLUMNS_MAX, Columns, Values
from .json_lines import number_in, read_objects, round_in
from .participation import Participation, Picture

__all__ = ["SPREAD", "WORST_SHARE", "ClientRecord", "lower_is_better", "read_clients"]

WORST_SHARE = 0.1
SPREAD = ("p10", "median", "p90", "worst")
"""The columns of a spread; `worst` is the mean of the worst `WORST_SHARE` of the clients."""
LOWER_IS_BETTER = ("loss", "error", "perplexity", "mse", "mae", "rmse", "nll", "epsilon")
"""Parts of the names of metrics of which less is better; of all others more is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRecord:
    """What is kept of clients.jsonl.

    Attributes:
        spreads: for "train.loss" and so on, the columns `SPREAD`; clients count the same.
        late: the column "late": clients that answered too late.
        picture: who took part; None if nobody did.
    """

    spreads: Mapping[str, Columns] = field(default_factory=dict)
    late: Columns = field(default_factory=Columns)
    picture: Picture | None = None


def read_clients(path: Path) -> ClientRecord:
    """Read clients.jsonl in one pass; the memory does not grow with the file's lines.

    Edge cases: a file that is not there gives an empty record.
    Raises:
        ConfigError: the file is damaged, or no such file; the text names the line.
    """
    participation = Participation()
    spreads: dict[str, Columns] = {}
    late = Columns()
    for found in read_objects(path):
        number = round_in(found, path)
        clients = found.get("clients")
        participation.add(number, clients if isinstance(clients, list) else [])
        too_late = found.get("late")
        late.add(number, {"late": float(len(too_late) if isinstance(too_late, list) else 0)})
        for metric, values in _metrics_in(found):
            if metric in spreads or len(spreads) < COLUMNS_MAX:
                spread = spread_of(values, lower=lower_is_better(metric))
                spreads.setdefault(metric, Columns()).add(number, spread)
    return ClientRecord(spreads=spreads, late=late, picture=participation.picture())


def _metrics_in(found: Mapping[str, Any]) -> Iterator[tuple[str, Values]]:
    for part in ("train", "evaluate"):
        metrics = found.get(part)
        for name, values in metrics.items() if isinstance(metrics, dict) else ():
            if name != "clients" and isinstance(values, list):
                numbers = np.array([number_in(value) for value in values], dtype=np.float64)
                yield f"{part}.{name}", numbers[np.isfinite(numbers)]


def spread_of(values: Values, *, lower: bool) -> dict[str, float]:
    """Return how a metric is spread over clients, by the names in `SPREAD`.

    Shapes: values: (clients,), all finite.
    Edge cases: of no values all numbers are NaN; the worst are at least one client.
    """
    if not len(values):
        return dict.fromkeys(SPREAD, math.nan)
    p10, median, p90 = np.percentile(values, (10, 50, 90))
    ordered = np.sort(values)[::-1] if lower else np.sort(values)
    worst = ordered[: math.ceil(WORST_SHARE * len(values))].mean()
    return dict(zip(SPREAD, map(float, (p10, median, p90, worst)), strict=True))


def lower_is_better(metric: str) -> bool:
    """Return whether less of a metric is better, as far as its name says."""
    return any(word in metric.rpartition(".")[2].lower() for word in LOWER_IS_BETTER)
