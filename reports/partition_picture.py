"""The picture of a division: a bar a client for a few, a map of classes for many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .partition_survey import Labels, Survey

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SUFFIXES", "check_picture", "draw"]

SUFFIXES = (".png", ".svg", ".pdf")
BARS_MAX = 40
COLUMNS_MAX = 1_000
LEGEND_MAX = 20
TICKS_MAX = 26
_INK, _QUIET, _FILL = "#1f2933", "#52606d", "#7b93b5"
_STYLE: Any = {  # matplotlib's type knows only literal keys
    "axes.edgecolor": "#c3cad3",
    "axes.labelcolor": _QUIET,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "svg.hashsalt": "1",
    "text.color": _INK,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
}


def check_picture(path: Path) -> None:
    """Check that a picture can be drawn, and that its name ends in a known kind.

    Raises:
        ConfigError: matplotlib is not installed, or the name ends in something else.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {path}: a picture's name must end in {', '.join(SUFFIXES)}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"--plot needs matplotlib, which cannot be imported ({error}); install it with "
            "pip install 'meadow-fl[plots]'"
        ) from None


def draw(found: Survey, path: Path, *, title: str) -> None:
    """Write the picture of a survey.

    Up to 40 clients are bars, their classes stacked. More are columns of a map that shows the
    distribution of each client's labels, sorted by its most frequent class, below their sizes; of
    more than 1,000 every so many-th is shown. Targets that are no classes are drawn as mean and
    standard deviation.

    Raises:
        ConfigError: as `check_picture`.
    """
    check_picture(path)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10, 5), layout="constrained")
        paint = _painter(found)
        paint(figure, found)
        figure.suptitle(title, fontsize=12, x=0.01, ha="left")
        dated = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, dpi=150, metadata=dated)


def _painter(found: Survey) -> Callable[[Figure, Survey], None]:
    if found.labels is None:
        return _numbers
    few = len(found.train) <= BARS_MAX and len(found.labels.classes) <= LEGEND_MAX
    return _bars if few else _map


def _bars(figure: Figure, found: Survey) -> None:
    axes, labels = figure.subplots(), _labels_of(found)
    clients, below = np.arange(len(found.train)), np.zeros(len(found.train), dtype=np.int64)
    for place, label in enumerate(labels.classes.tolist()):
        counts = labels.counts[:, place]
        color = _color(place, len(labels.classes))
        axes.bar(
            clients,
            counts,
            0.82,
            bottom=below,
            label=str(label),
            color=color,
            edgecolor="white",
            linewidth=0.4,
        )
        below = below + counts
    axes.set(xlabel="client", ylabel="samples to train on", ylim=(0, int(below.max()) * 1.04))
    axes.set_xticks(_ticks(len(clients)))
    axes.margins(x=0.01)
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles[::-1], names[::-1], title="class", loc="outside right center", frameon=False
    )


def _map(figure: Figure, found: Survey) -> None:
    labels = _labels_of(found)
    shares = labels.shares
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
    chosen = order[np.linspace(0, len(order) - 1, min(len(order), COLUMNS_MAX)).astype(int)]
    above, axes = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
    _sizes(above, found.train[chosen])
    image = axes.imshow(
        shares[chosen].T,
        aspect="auto",
        origin="lower",
        cmap="Blues",
        vmin=0,
        interpolation="nearest",
    )
    some = f"{len(chosen):,} of {len(order):,} clients" if len(chosen) < len(order) else "clients"
    axes.set(xlabel=f"{some}, sorted by their most frequent class", ylabel="class")
    places = _ticks(len(labels.classes))
    axes.set_yticks(places, [str(labels.classes[place]) for place in places])
    axes.set_xticks([])
    figure.colorbar(image, ax=axes, label="share of the client's samples", pad=0.01)


def _numbers(figure: Figure, found: Survey) -> None:
    order = np.arange(len(found.train))
    if len(order) > BARS_MAX:
        order = np.argsort(found.means, kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, min(len(order), COLUMNS_MAX)).astype(int)]
    above, axes = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
    _sizes(above, found.train[chosen])
    axes.errorbar(
        np.arange(len(chosen)),
        found.means[chosen],
        found.deviations[chosen],
        fmt="o",
        color=_INK,
        ecolor=_FILL,
        markersize=3,
        linewidth=0,
        elinewidth=1,
    )
    sorted_by = ", sorted by their mean" if len(order) > BARS_MAX else ""
    axes.set(xlabel=f"clients{sorted_by}", ylabel="target: mean ± deviation")
    axes.set_xticks(_ticks(len(chosen)) if not sorted_by else [])


def _sizes(axes: Axes, sizes: NDArray[np.int64]) -> None:
    axes.bar(np.arange(len(sizes)), sizes, 0.8 if len(sizes) <= BARS_MAX else 1.0, color=_FILL)
    axes.set(ylabel="samples", ylim=(0, max(1, sizes.max()) * 1.05))
    axes.tick_params(axis="x", length=0)
    axes.margins(x=0)


def _labels_of(found: Survey) -> Labels:
    assert found.labels is not None
    return found.labels


def _color(place: int, count: int) -> Any:
    import matplotlib

    if count <= 10:
        return matplotlib.colormaps["tab10"](place)
    return matplotlib.colormaps["tab20"](place)


def _ticks(count: int) -> list[int]:
    return list(range(0, count, -(-count // TICKS_MAX)))
