"""The two kinds of chart in a report: lines over rounds or time, and a map of shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from .columns import POINTS_MAX, Values, thin
from .markup import Html
from .participation import ClientId, Picture
from .svg import chart_style, figure_to_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "DASHES", "Band", "Line", "Panel", "draw_map", "draw_panel", "figure_of"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito (2008): told apart with any kind of colour blindness; without the yellow, which
is too light for a line on white."""
DASHES = ("solid", "dashed", "dashdot", "dotted")
PANEL_IN = (5.0, 3.3)
MAP_IN = (7.6, 3.6)
FIGURE_COLUMNS = 3
FIGURE_PANEL_IN = (3.6, 2.6)
_figures = count()
MARKED_POINTS_MAX = 25
"""Up to this many points of a line are drawn as points, too."""
POINTS_LEAST = 200
"""What a line among many others has."""
STEPS = (1, 2, 5, 10)
LABEL_LENGTH_MAX = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A curve. Shapes: x, y: (points,); points that are not finite are left out."""

    x: Values
    y: Values
    colour: str = COLOURS[0]
    dash: str = DASHES[0]
    faint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """An area between two curves. Shapes: x, low, high: (points,)."""

    x: Values
    low: Values
    high: Values
    colour: str = COLOURS[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes and what is in it."""

    title: str
    x_label: str
    lines: Sequence[Line]
    bands: Sequence[Band] = ()
    y_label: str = ""
    y_limits: tuple[float, float] | None = None
    whole_x: bool = True
    from_zero: bool = False


def draw_panel(panel: Panel, *, ident: str) -> Html:
    """Return a panel as SVG."""
    from matplotlib.figure import Figure

    with chart_style():
        figure = Figure(figsize=PANEL_IN, layout="constrained")
        _draw_into(figure.add_subplot(), panel)
        return figure_to_html(figure, ident=ident, label=f"{panel.title} by {panel.x_label}")


def figure_of(panels: Sequence[Panel], names: Sequence[str] = ()) -> Figure:
    """Return panels side by side, three in a row, as a matplotlib figure.

    `names` are those of the first panel's lines; without them there is no legend.
    """
    from matplotlib.figure import Figure

    columns = min(FIGURE_COLUMNS, max(1, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    with chart_style():
        size = (FIGURE_PANEL_IN[0] * columns, FIGURE_PANEL_IN[1] * rows)
        figure = Figure(figsize=size, layout="constrained")
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(rows, columns, place + 1)
            _draw_into(axes, panel)
            if not place and names:
                figure.legend(axes.get_lines(), names, loc="outside lower center", ncols=3)
    ident = f"figure{next(_figures)}"
    label = ", ".join(panel.title for panel in panels)
    html = figure_to_html(figure, ident=ident, label=label)
    figure._repr_html_ = lambda: html  # type: ignore[method-assign]  # how a notebook shows it
    return figure


def _draw_into(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    for band in panel.bands:
        _fill(axes, band)
    for line in panel.lines:
        _draw(axes, line, points_max=max(POINTS_LEAST, 4 * POINTS_MAX // len(panel.lines)))
    axes.set_title(_short(panel.title))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=STEPS, integer=panel.whole_x))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=STEPS))
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)
    elif panel.from_zero:
        axes.set_ylim(bottom=0)


def _draw(axes: Axes, line: Line, *, points_max: int) -> None:
    x, y = thin(line.x, line.y, points_max=min(points_max, POINTS_MAX))
    axes.plot(
        x,
        y,
        color=line.colour,
        linestyle=line.dash,
        linewidth=1.1 if line.faint else 1.8,
        marker="o" if len(x) <= MARKED_POINTS_MAX and not line.faint else "",
        markersize=3,
    )


def _fill(axes: Axes, band: Band) -> None:
    x, low = thin(band.x, band.low)
    top_x, high = thin(band.x, band.high)
    outline_x, outline_y = np.concatenate([x, top_x[::-1]]), np.concatenate([low, high[::-1]])
    axes.fill(outline_x, outline_y, color=band.colour, alpha=0.15, linewidth=0)


def draw_map(picture: Picture, *, ident: str) -> Html:
    """Return who took part as SVG: clients from top to bottom, rounds from left to right."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with chart_style():
        figure = Figure(figsize=MAP_IN, layout="constrained")
        axes = figure.add_subplot()
        rounds = picture.shares.shape[1] * picture.rounds_a_bin
        most = max(0.01, float(np.nanmax(picture.shares)))
        image = axes.imshow(
            np.nan_to_num(picture.shares),
            cmap="Blues",
            vmin=0,
            vmax=most,  # a small cohort is to be seen, too
            aspect="auto",
            interpolation="nearest",
            extent=(0.5, rounds + 0.5, len(picture.shares) * picture.clients_a_bin + 0.5, 0.5),
        )
        axes.set_ylim(len(picture.ids) + 0.5, 0.5)  # the last bin may have fewer clients
        axes.grid(visible=False)
        axes.set_xlabel("round")
        axes.set_ylabel("client")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=STEPS, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=STEPS, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: _id_at(picture.ids, at)))
        bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=30, ticks=[0, most])
        bar.ax.set_yticklabels(["0 %", f"{most:.0%}".replace("%", " %")])
        bar.outline.set_visible(False)
        return figure_to_html(figure, ident=ident, label="which clients took part in which rounds")


def _id_at(ids: Sequence[ClientId], at: float) -> str:
    place = round(at) - 1
    return _short(str(ids[place]), 12) if 0 <= place < len(ids) else ""


def _short(text: str, length_max: int = LABEL_LENGTH_MAX) -> str:
    plain = "".join(mark if mark.isprintable() else "?" for mark in text)
    return plain if len(plain) <= length_max else plain[: length_max - 1] + "…"
