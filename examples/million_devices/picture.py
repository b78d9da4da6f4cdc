"""The picture of the study: cohorts, deadlines and buffers, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from study import Row, Run

__all__ = ["draw"]

_STYLE: Any = {  # matplotlib's type knows only literal keys
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "grid.color": "#e8ebef",
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def draw(
    cohorts: Sequence[Row],
    deadlines: Sequence[Row],
    buffers: Sequence[Row],
    *,
    path: Path,
    target: float,
) -> None:
    """Write four panels; a line is the median of a row's runs."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10, 6.8), layout="constrained")
        grid = figure.subplots(2, 2)
        _curves(grid[0, 0], cohorts, lambda run: run.rounds, target)
        grid[0, 0].set(title="cohort: accuracy by round", xlabel="round", xlim=(0, 80))
        _curves(grid[0, 1], cohorts, lambda run: run.gigabytes, target, legend="center left")
        grid[0, 1].set(title="cohort: accuracy by traffic", xlabel="GB", xscale="log")
        _deadlines(grid[1, 0], deadlines)
        _curves(grid[1, 1], buffers, lambda run: run.hours, target)
        grid[1, 1].set(title="FedBuff's buffer: accuracy by time", xlabel="virtual hours")
        figure.savefig(path, dpi=120)


def _curves(
    axes: Axes,
    rows: Sequence[Row],
    places_of: Callable[[Run], Sequence[float]],
    target: float,
    *,
    legend: str = "lower right",
) -> None:
    axes.axhline(target, color="#52606d", linewidth=1, linestyle=(0, (4, 3)))
    for row in rows:
        places = np.median([places_of(run) for run in row.runs], axis=0)
        values = np.median([run.accuracies for run in row.runs], axis=0)
        axes.plot(places, values, label=row.name, linewidth=1.3)
    axes.set_ylim(0, 1.02)
    axes.legend(loc=legend)


def _deadlines(axes: Axes, rows: Sequence[Row]) -> None:
    places = range(len(rows))
    lines: tuple[tuple[str, str, Callable[[Run], float]], ...] = (
        ("o-", "all digits", lambda run: run.accuracies[-1]),
        ("s-", "8 and 9", lambda run: run.late_accuracy),
        (":", "share that answered", lambda run: run.answered),
    )
    for style, label, value_of in lines:
        values = [median(value_of(run) for run in row.runs) for row in rows]
        axes.plot(places, values, style, label=label)
    axes.set_xticks(places, [row.name for row in rows])
    axes.set(title="deadline: accuracy of the last model", ylim=(-0.03, 1.03))
    axes.legend(loc="lower right")
