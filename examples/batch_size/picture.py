"""The picture of the study: what a batch size costs, needs and reaches, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from study import Curve

__all__ = ["draw"]

_INK, _QUIET, _LINES = "#1f2933", "#52606d", ("#1f5fa8", "#d1662a")
_MARKERS = ("o", "s")
_STYLE: Any = {  # matplotlib's type knows only literal keys
    "axes.edgecolor": "#c3cad3",
    "axes.grid": True,
    "axes.labelcolor": _QUIET,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "font.size": 10,
    "grid.color": "#e8ebef",
    "text.color": _INK,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
}
_TICKS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 20, 30, 50, 70, 100, 200, 300, 500)


def draw(curves: Mapping[str, Sequence[Curve]], path: Path, *, target: float) -> None:
    """Write the picture: four panels over the batch size, a line for each name in `curves`.

    Edge cases: a size that does not reach the target has no point in the panels that are about
        it, and so a gap in its line.
    """
    panels: list[tuple[str, Callable[[Curve], float | None]]] = [
        ("seconds an epoch", lambda curve: curve.epoch_s),
        (f"epochs to accuracy {target:g}", lambda curve: curve.epochs_to(target)),
        (f"seconds to accuracy {target:g}", lambda curve: curve.seconds_to(target)),
        ("best accuracy", lambda curve: curve.best),
    ]
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10, 6.4), layout="constrained")
        grid = figure.subplots(2, 2, sharex=True)
        for axes, (title, value_of) in zip(grid.flat, panels, strict=True):
            _lines(axes, curves, value_of)
            axes.set_title(title)
        _sizes(grid, curves)
        grid[0, 0].set_ylim(bottom=0)
        _logarithmic(grid[0, 1])
        _logarithmic(grid[1, 0])
        grid[1, 1].axhline(target, color=_QUIET, linewidth=1, linestyle=(0, (4, 3)))
        handles, names = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper left", ncols=2, frameon=False)
        figure.savefig(path, dpi=150)


def _lines(
    axes: Axes,
    curves: Mapping[str, Sequence[Curve]],
    value_of: Callable[[Curve], float | None],
) -> None:
    for (name, side), color, marker in zip(curves.items(), _LINES, _MARKERS, strict=True):
        values = [value_of(curve) for curve in side]
        axes.plot(
            [curve.batch_size for curve in side],
            [float("nan") if value is None else value for value in values],
            label=name,
            color=color,
            marker=marker,
            markersize=5,
            linewidth=1.8,
        )


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(_TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _sizes(grid: Any, curves: Mapping[str, Sequence[Curve]]) -> None:
    sizes = sorted({curve.batch_size for side in curves.values() for curve in side})
    for axes in grid.flat:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator([s for s in sizes if s & (s - 1) == 0]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axes in grid[-1]:
        axes.set_xlabel("batch size")
