"""Charts as SVG inside of an HTML page: same data, same bytes; no ids shared between charts."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .markup import Html, element

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["chart_style", "figure_to_html", "require_matplotlib"]

INK, QUIET, GRID = "#1f2933", "#52606d", "#e4e7eb"
_STYLE: dict[str, Any] = {
    "axes.edgecolor": "#9aa5b1",
    "axes.formatter.use_mathtext": False,
    "axes.grid": True,
    "axes.labelcolor": QUIET,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "figure.dpi": 72,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "image.composite_image": False,
    "lines.linewidth": 1.6,
    "path.simplify": True,
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "meadow",
    "text.parse_math": False,  # names come from files
    "text.usetex": False,
    "xtick.color": QUIET,
    "xtick.labelsize": 8,
    "ytick.color": QUIET,
    "ytick.labelsize": 8,
}
_TAG = re.compile(r"<[^>]*>")  # text between tags has no bare < or >
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(url\(#|href="#)([^")]*)')
_BEFORE = re.compile(r"\A.*?(?=<svg)", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def require_matplotlib() -> None:
    """Check that charts can be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"charts need matplotlib, which cannot be imported ({error}); install it with "
            "pip install 'meadow-fl[plots]'"
        ) from None


@contextmanager
def chart_style() -> Iterator[None]:
    """Draw what the block draws in the report's style, whatever the user's own is."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a metric's name has a letter we cannot draw
        matplotlib.rcdefaults()
        parameters: Any = matplotlib.rcParams  # its type knows only literal keys
        parameters.update(_STYLE)
        yield


def figure_to_html(figure: Figure, *, ident: str, label: str) -> Html:
    """Return a figure as an SVG element.

    `ident` begins every id in it and differs from chart to chart; `label` is what a screen
    reader says.
    """
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing)
    text = _METADATA.sub("", _BEFORE.sub("", file.getvalue()))
    used = {found[1] for tag in _TAG.findall(text) for found in _REFERENCE.findall(tag)}

    def rename(tag: re.Match[str]) -> str:
        kept = _ID.sub(lambda m: f' id="{ident}-{m[1]}"' if m[1] in used else "", tag[0])
        return _REFERENCE.sub(rf"\g<1>{ident}-\g<2>", kept)

    drawn = re.sub(r">\s*\n\s*<", "><", _TAG.sub(rename, text))
    return element("figure", Html(drawn.strip()), role="img", aria_label=label)
