"""A client's half of analytics: which part of its rows lies below each point that the server sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...strategies.algorithms.algorithm import Params
from ...strategies.algorithms.analytics import BELOW, MOMENTS, POINTS
from ...strategies.algorithms.auxiliary_names import auxiliary_name, of_kind
from ...task import ClientData
from .work_bench import LocalWork, WorkBench

if TYPE_CHECKING:
    from ...task import Data, Task

__all__ = ["ColumnStatistics"]

Reals = NDArray[np.float64]


class ColumnStatistics(LocalWork):
    """Answers with parts of the site's rows, and means over them."""

    def answer(self, bench: WorkBench, sent: Params) -> tuple[int, dict[str, float], Params]:
        """Return the number of rows, no metrics, and the answers.

        Raises:
            DataError: the task has no such column, or a column has no values.
        """
        points = of_kind(POINTS, sent)
        columns = _columns_of(bench.task, bench.data)
        if missing := points.keys() - columns.keys():
            raise DataError(
                f"the task's columns have no {min(missing)!r}; they are {', '.join(columns)}"
            )
        rows = {len(columns[name]) for name in points}
        if len(rows) != 1:
            raise DataError(f"columns must have a value a row each, got {sorted(rows)} of them")
        made: dict[str, NDArray[Any]] = {}
        for name, asked in points.items():
            made[auxiliary_name(POINTS, name)] = asked
            below, moments = _answers(name, columns[name], np.asarray(asked))
            made[auxiliary_name(BELOW, name)] = below
            made[auxiliary_name(MOMENTS, name)] = moments
        return rows.pop(), {}, {name: made[name] for name in sent}

    def measure(self, bench: WorkBench, sent: Params, data: Data) -> tuple[int, dict[str, float]]:
        """Refuse: statistics are not evaluated."""
        raise DataError("statistics of data are nothing that data could be evaluated with")


def _columns_of(task: Task, data: ClientData) -> Mapping[str, Reals]:
    if task.columns is None:
        raise DataError(
            "the task has no columns; say Task(columns=...), which gives a site's data as named "
            "columns of numbers"
        )
    test = None if data.test is None else _on_cpu(data.test)
    columns = task.columns(ClientData(train=_on_cpu(data.train), test=test))
    return {name: np.asarray(values, np.float64).reshape(-1) for name, values in columns.items()}


def _on_cpu(data: Data) -> Data:
    return (data[0].cpu(), data[1].cpu()) if isinstance(data, tuple) else data


def _answers(name: str, values: Reals, points: Reals) -> tuple[Reals, Reals]:
    """Return which part of the rows is below each point, and the moments over all rows."""
    low, high = points[0, 0], points[0, -1]
    there = np.sort(np.clip(values[~np.isnan(values)], low, high))
    if not len(there):
        raise DataError(
            f"column {name!r} has no values here, and statistics are of sites that have some"
        )
    below = np.searchsorted(there, points, side="left") / len(values)
    scaled = (there - (low + high) / 2) / ((high - low) / 2)
    sums = [len(there), scaled.sum(), np.square(scaled).sum()]
    return below, np.array(sums, np.float64) / len(values)
