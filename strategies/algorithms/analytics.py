"""Analytics: counts, means, variances, histograms and quantiles of the clients' data.

A client answers with the part of its rows that lies below some points, and with the means of its
values and of their squares; those of all clients together are the weighted means of them, as params
are in FedAvg. Quantiles are found by narrowing, round after round, the interval that each is in. A
group smaller than the least one is never shown: neither a client's, nor a few rows'.

Source: Ramage, Mazzocchi, "Federated analytics: collaborative data science without data collection"
(2020); the interval search is bisection with `bins` parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, RunError
from ...flower.messages import FlatTensor
from .algorithm import Aggregate, Algorithm, Params, State
from .auxiliary_names import auxiliary_name, kind_of, of_kind
from .bounds import require_number, require_whole
from .builders import builder
from .columns import Column, column_of
from .mean import MeanAggregator
from .metrics import Metrics

__all__ = ["BELOW", "GROUP_MIN", "MOMENTS", "POINTS", "analytics"]

Reals = NDArray[np.float64]

POINTS, BELOW, MOMENTS = "points", "below", "moments"
GROUP_MIN = 3
"""A round shows something of this many clients or more: of two, each would see the other's."""
SLACK = 1e-9
"""Parts of a whole are sums of rounded numbers."""
ROUNDING = 1e-3
SHOWN = ("count", "mean", "variance", "histogram", "edges", "quantiles", "widths")


@builder(
    example={"columns": ["age=0:120"]},
    client="counts the rows of its data that lie below some points",
    optimizer="none",
    clippable=True,
    clients_min=GROUP_MIN,
    of_whole=True,
)
def analytics(
    *,
    columns: Sequence[str] = (),
    bins: int = 20,
    quantiles: Sequence[float] = (0.25, 0.5, 0.75),
    rows_min: int = 5,
) -> Algorithm:
    """Compute statistics of columns of the clients' data; no model is trained.

    Of a column there are, in the params, count, mean and variance (of n - 1), a histogram with its
    edges (a value on an edge is in the cell above it), and the quantiles: the least value that
    this part of the rows does not exceed, as the middle of an interval of `widths`, `bins` times
    narrower each round.

    Guarantees: what is shown is of at least `GROUP_MIN` clients, each with values of every column.
        Counts are multiples of `rows_min`, and no quantile's interval has fewer rows than that: 1
        shows all there is. Means and variances are of the values moved into the range.
    Raises:
        ConfigError: an argument is out of its bounds, or a column is there twice.
    """
    asked = [column_of(text) for text in columns]
    if not asked or len({column.name for column in asked}) < len(asked):
        raise ConfigError('columns must name each column once, as ["age=0:120"]')
    require_whole("bins", bins, at_least=2)
    require_whole("rows_min", rows_min, at_least=1)
    for quantile in quantiles:
        require_number("quantiles", quantile, at_least=0, at_most=1)
    parts = tuple(quantiles)

    return Algorithm(
        name="analytics",
        init=lambda params: _begun(asked, bins, parts),
        apply=lambda state, aggregate: _answered(state, aggregate, asked, parts, rows_min),
        aggregator=MeanAggregator(),
        client="meadow.training.algorithms.column_statistics:ColumnStatistics",
        client_config={"algorithm": "analytics"},
        sent=_questions,
        evaluated=None,
        auxiliary=(POINTS, BELOW, MOMENTS),
        of_model=False,
        reports=False,
        measured=lambda state: _spoken(state.params, asked, parts),
        fault=_fault,
    )


def _begun(asked: Sequence[Column], bins: int, parts: Sequence[float]) -> State:
    """Return the state in which nothing is known."""
    shown: dict[str, NDArray[Any]] = {}
    slots: dict[str, NDArray[Any]] = {}
    for column in asked:
        edges = np.linspace(column.low, column.high, bins + 1)
        slots[column.name] = np.stack([edges] * (1 + len(parts)))
        shapes = {"histogram": bins, "edges": bins + 1}
        for name in SHOWN:
            size = shapes.get(name, len(parts) if name in ("quantiles", "widths") else ())
            shown[auxiliary_name(column.name, name)] = np.full(size, np.nan)
    return State(params=shown, slots={POINTS: slots})


def _questions(state: State) -> Params:
    """Return the points, and where the answers go."""
    made = {}
    for name, points in state.slots[POINTS].items():
        made[auxiliary_name(POINTS, name)] = points
        made[auxiliary_name(BELOW, name)] = np.zeros_like(points)
        made[auxiliary_name(MOMENTS, name)] = np.zeros(3)
    return made


def _answered(
    state: State,
    aggregate: Aggregate,
    asked: Sequence[Column],
    parts: Sequence[float],
    rows_min: int,
) -> State:
    """Return what is known after a round."""
    if aggregate.clients < GROUP_MIN:
        raise RunError(
            f"{aggregate.clients} clients answered, and statistics are shown of at least "
            f"{GROUP_MIN}; raise run.min_clients"
        )
    shown, slots = {}, {}
    for column in asked:
        points = state.slots[POINTS][column.name]
        found = _Found(
            column=column,
            points=points,
            below=of_kind(BELOW, aggregate.mean)[column.name] * aggregate.weight,
            moments=of_kind(MOMENTS, aggregate.mean)[column.name] * aggregate.weight,
        )
        shown.update({auxiliary_name(column.name, k): v for k, v in found.shown(rows_min).items()})
        narrow = [found.narrowed(row, part, rows_min) for row, part in enumerate(parts, 1)]
        slots[column.name] = np.stack([points[0], *narrow])
        middles = [(row[0] + row[-1]) / 2 for row in narrow]
        shown[auxiliary_name(column.name, "quantiles")] = np.array(middles)
        shown[auxiliary_name(column.name, "widths")] = np.array([r[-1] - r[0] for r in narrow])
    ordered = {name: shown[name] for name in state.params}
    return State(params=ordered, round=state.round + 1, slots={POINTS: slots})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What all clients' rows of a column add up to, as numbers of rows."""

    column: Column
    points: Reals
    below: Reals
    moments: Reals

    def shown(self, rows_min: int) -> Mapping[str, NDArray[Any]]:
        """Return the statistics of the whole column."""
        count, first, second = self.moments.tolist()
        middle, half = _middle_and_half(self.column)
        mean = first / count if count > 0 else math.nan
        spread = max(second - first * mean, 0.0) / (count - 1) if count > 1 else math.nan
        cells = np.diff(self.below[0])
        cells[-1] = count - self.below[0][-2]
        return {
            "count": np.asarray(_rounded(count, rows_min)),
            "mean": np.asarray(middle + half * mean),
            "variance": np.asarray(half**2 * spread),
            "histogram": _rounded(np.maximum(cells, 0.0), rows_min),
            "edges": self.points[0],
        }

    def narrowed(self, row: int, part: float, rows_min: int) -> Reals:
        """Return the points of the next round for a quantile: those of the cell that it is in."""
        points, below = self.points[row], self.below[row].copy()
        if points[-1] >= self.column.high:
            below[-1] = self.moments[0]  # nothing is beyond the range
        wanted = max(part * self.moments[0], SLACK)
        cell = int(np.searchsorted(below[1:-1], wanted * (1 - SLACK), side="left"))
        if below[cell + 1] - below[cell] < rows_min * (1 - SLACK):
            return np.asarray(points)
        return np.linspace(points[cell], points[cell + 1], len(points))


def _fault(tensors: Mapping[str, FlatTensor]) -> str | None:
    """Say which answer is no part of a whole; those of secure sums are rounded."""
    for name, tensor in tensors.items():
        if kind_of(name, (BELOW, MOMENTS)):
            least = -1.0 if kind_of(name, (MOMENTS,)) else 0.0
            values = tensor.numpy()
            if values.min() < least - ROUNDING or values.max() > 1 + ROUNDING:
                return f"must be parts of a whole, and tensor {name!r} has others"
            if least < 0 and values.reshape(-1)[0] <= 0:
                return f"is of no rows: tensor {name!r} begins with {values.reshape(-1)[0]:g}"
    return None


def _middle_and_half(column: Column) -> tuple[float, float]:
    return (column.low + column.high) / 2, (column.high - column.low) / 2


def _rounded(counts: Any, base: int) -> Any:
    return np.rint(counts / base) * base


def _spoken(params: Params, asked: Sequence[Column], parts: Sequence[float]) -> Metrics:
    """Return the statistics that are single numbers, by names for people."""
    spoken: Metrics = {}
    for column in asked:
        shown = of_kind(column.name, params)
        numbers: Metrics = {name: float(shown[name]) for name in ("count", "mean")}
        numbers["deviation"] = math.sqrt(float(shown["variance"]))
        found = zip(parts, shown["quantiles"].tolist(), strict=True)
        numbers |= {f"quantile-{part:g}": float(value) for part, value in found}
        spoken |= {f"{column.name}-{name}": number for name, number in numbers.items()}
    return spoken
