"""HTML elements in which every text is escaped, wherever it came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["Html", "element", "fragment", "table"]

VOID = frozenset({"input", "link", "meta"})


class Html(str):
    """Text that is HTML already; only this module and the charts make it."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str) -> Html:
    """Return an element; children are escaped unless they are `Html`, attributes always.

    An attribute that is a word of Python has an underscore after it: `class_="wide"`.
    """
    said = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_plain(value), quote=True)}"'
        for name, value in attributes.items()
    )
    if tag in VOID:
        return Html(f"<{tag}{said}>")
    return Html(f"<{tag}{said}>{fragment(children)}</{tag}>")


def fragment(children: Iterable[str]) -> Html:
    """Return the children one after the other, escaped unless they are `Html`."""
    return Html("".join(c if isinstance(c, Html) else escape(_plain(c)) for c in children))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, class_: str = "") -> Html:
    """Return a table whose first cell of each row is its heading."""
    head = element("tr", *(element("th", heading, scope="col") for heading in headings))
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell) for cell in row[1:]),
        )
        for row in rows
    ]
    made = element("table", element("thead", head), element("tbody", *body), class_=class_)
    return element("div", made, class_="scroll")


def _plain(text: str) -> str:
    """Drop what HTML allows nowhere, and what changes the direction of the text around it."""
    return "".join(mark if mark.isprintable() or mark in "\n\t" else "\ufffd" for mark in text)
