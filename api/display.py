"""Shows a run's progress: a live table in a terminal or a notebook, or nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..cli.live import RunView
from ..reports.markup import Html, element, fragment, table
from ..reports.shown_run import number

__all__ = ["Progress", "in_notebook", "shown"]

Progress = bool | None
OnEvent = Callable[[str, Mapping[str, Any]], None]
ROWS_SHOWN = 12
PARTS = ("train", "evaluate", "server")


@contextmanager
def shown(title: str, progress: Progress, on_event: OnEvent | None) -> Iterator[OnEvent]:
    """Yield the function that shows a run's events and passes them on to `on_event`."""
    views: list[OnEvent] = [] if on_event is None else [on_event]
    notebook = in_notebook()
    wanted = notebook or sys.stdout.isatty() if progress is None else progress
    if not wanted:
        yield _all(views)
    elif notebook:
        yield _all([NotebookView(title).show, *views])
    else:
        with RunView(title) as view:
            yield _all([view.show, *views])


def _all(views: Sequence[OnEvent]) -> OnEvent:
    def show(kind: str, detail: Mapping[str, Any]) -> None:
        for view in views:
            view(kind, detail)

    return show


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return found is not None and hasattr(found, "kernel")


class NotebookView:
    """A table below the cell, drawn anew with every round."""

    def __init__(self, title: str) -> None:

        shell: Any = importlib.import_module("IPython.display")
        self._html = shell.HTML
        self._title, self._note = title, "starting"
        self._rounds: int | None = None
        self._rows: list[Mapping[str, Any]] = []
        self._handle = shell.display(self._html(self._draw()), display_id=True)

    def show(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Process an event; redraw the table if the event changes it."""
        if kind == "ready":
            self._rounds = detail.get("rounds") or None
        elif kind == "round_started":
            self._note = f"round {detail.get('round')}: {detail.get('clients')} clients train"
        elif kind == "round_committed":
            self._rows.append(detail)
            self._note = ""
        elif kind in ("stopping", "early_stopped", "stopped"):
            self._note = f"stopping: {detail.get('cause') or detail.get('after')}"
        else:
            return
        self._handle.update(self._html(self._draw()))

    def _draw(self) -> str:
        done = self._rows[-1]["round"] if self._rows else 0
        total = f" of {self._rounds}" if self._rounds else ""
        head = element("p", element("b", self._title), f": {done}{total} rounds. {self._note}")
        bar = element("progress", value=str(done), max=str(self._rounds or max(1, done)))
        return fragment([head, bar, table_of(self._rows[-ROWS_SHOWN:])])


def table_of(rows: Sequence[Mapping[str, Any]]) -> Html:
    """Return rows of metrics.jsonl as an HTML table, loss first in each part."""
    names = sorted(
        {(part, name) for row in rows for part in PARTS for name in row.get(part) or {}},
        key=lambda each: (PARTS.index(each[0]), each[1] != "loss", each[1]),
    )
    headings = ["round", "clients", *(f"{part} {name}" for part, name in names), "seconds"]
    lines = [
        [
            str(row["round"]),
            str(row.get("clients", "")),
            *(number((row.get(part) or {}).get(name)) for part, name in names),
            f"{row.get('duration_s') or 0:.2f}",
        ]
        for row in rows
    ]
    return table(headings, lines) if lines else Html("")
