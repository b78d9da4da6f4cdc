"""Curves as small SVG pictures, fast enough to be drawn anew every second.

The report's charts are matplotlib's, and take a hundred times longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ...reports.markup import Html, element

__all__ = ["Points", "curve"]

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 360, 170
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 22
POINTS_MAX: Final = 400
"""Of longer curves, the lowest and the highest point of each stretch are drawn."""
TICKS = 4


def curve(title: str, points: Points) -> Html:
    """Return a curve over rounds; points that are not finite are left out, nothing without any."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not finite:
        return Html("")
    shown = _thin(finite)
    ticks = _ticks(min(y for _, y in shown), max(y for _, y in shown))
    low, high = ticks[0], ticks[-1]
    first, last = finite[0][0], max(finite[-1][0], finite[0][0] + 1)

    def at(x: float, y: float) -> str:
        across = LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        down = TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{down:.1f}"

    grid = []
    for tick in ticks:
        height = at(first, tick).partition(",")[2]
        grid.append(
            element(
                "line", x1=str(LEFT), x2=str(WIDTH - RIGHT), y1=height, y2=height, class_="grid"
            )
        )
        words = element("text", f"{tick:.4g}", x=str(LEFT - 6), y=height, class_="y")
        grid.append(words)
    for round_, side in ((first, "first"), (last, "last")):
        across = at(round_, low).partition(",")[0]
        grid.append(element("text", f"{round_:g}", x=across, y=str(HEIGHT - 6), class_=side))
    line = element("polyline", points=" ".join(at(x, y) for x, y in shown))
    dot = at(*shown[-1]).split(",")
    end = element("circle", cx=dot[0], cy=dot[1], r="3")
    label = f"{title}: {finite[-1][1]:.4g} in round {finite[-1][0]:g}"
    picture = element(
        "svg", *grid, line, end, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label
    )
    caption = element("figcaption", title, " ", element("b", f"{finite[-1][1]:.4g}"))
    return element("figure", caption, picture)


def _thin(points: Points) -> Points:
    if len(points) <= POINTS_MAX:
        return points
    kept: list[tuple[float, float]] = [points[0]]
    length = 2 * len(points) / POINTS_MAX
    for place in range(POINTS_MAX // 2):
        stretch = points[int(place * length) : int((place + 1) * length)]
        ends = {min(stretch, key=lambda each: each[1]), max(stretch, key=lambda each: each[1])}
        kept.extend(sorted(ends))
    return [*kept, points[-1]]


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers from at most `low` to at least `high`."""
    if not high > low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough * 0.999)
    start, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [place * step for place in range(start, max(end, start + 1) + 1)]
