"""Shows a run's events on a terminal, as a table with a progress bar, or as lines.

On a terminal, the view is redrawn as events arrive. Elsewhere, every round is one line, and with
`--format json`, every event is one JSON object on a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from ..reports.sentences import amount, sentence_of
from .output import Format, plain

__all__ = ["RunView"]

ROWS_SHOWN = 12
WIDE_COLUMNS = 100
"""Terminal width, in characters, from which the bytes are shown too."""
FAILURES_SHOWN_MAX = 5
"""Failed clients that are shown for a round; the round's line counts them all."""
PARTS = ("train", "evaluate", "server", "query")


class RunView:
    """Shows the events of one run, simulated or on a server."""

    def __init__(self, title: str, *, format: Format = Format.TEXT) -> None:
        self._format = format
        self._out = sys.stdout  # apps may print, and their output may be turned away
        self._title = title
        self._rows: list[Mapping[str, Any]] = []
        self._rounds: int | None = None
        self._failures: tuple[Any, int] = (None, 0)
        """A round, and the number of its failed clients that were shown."""
        self._note = "starting"
        self._over = False
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
        )
        self._task = self._progress.add_task(title, total=None)
        self._console = Console(highlight=False)
        self._live: Live | None = None
        if format is Format.TEXT and sys.stdout.isatty():
            self._live = Live(
                console=self._console, get_renderable=self._render, refresh_per_second=8
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._progress.stop_task(self._task)
            self._over = True
            self._live.__exit__(kind, error, trace)

    def show(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Record an event and show it."""
        if self._format is Format.JSON:
            print(json.dumps({"event": kind, **detail}, default=str), file=self._out, flush=True)
            return
        lasting = plain(self._take(kind, detail) or "")
        if lasting and self._live is None:
            print(lasting, file=self._out, flush=True)
        elif lasting and kind != "round_committed":
            self._console.print(lasting, markup=False, soft_wrap=True)  # stays above the table

    def _take(self, kind: str, detail: Mapping[str, Any]) -> str | None:
        """Record an event for the table and the note; return a line to print above them, if any."""
        if kind == "ready":
            self._rounds = detail.get("rounds") or None
            self._progress.update(self._task, total=self._rounds)
            return None
        if kind == "executor_trial":
            self._note = f"trying {detail.get('executor')} on {detail.get('clients')} clients"
            return None
        if kind == "round_started":
            self._note = f"round {detail.get('round')}: {detail.get('clients')} clients train"
            return None
        if kind == "round_committed":
            self._rows.append(detail)
            self._note = ""
            self._progress.update(self._task, completed=detail["round"])
            return _round_line(detail, self._rounds)
        if kind == "status":
            self._note = ""
            cause = f": {detail['cause']}" if detail.get("cause") else ""
            return f"{self._title} is {detail.get('status')}{cause}"
        if kind in ("client_failed", "update_refused", "evaluation_refused"):
            return self._failure(kind, detail)
        return sentence_of(kind, detail)

    def _failure(self, kind: str, detail: Mapping[str, Any]) -> str | None:
        known_round, shown = self._failures
        shown = shown + 1 if known_round == detail.get("round") else 1
        self._failures = detail.get("round"), shown
        if shown > FAILURES_SHOWN_MAX + 1:
            return None
        if shown > FAILURES_SHOWN_MAX:
            return f"round {detail.get('round')}: more clients failed"
        return sentence_of(kind, detail)

    def _render(self) -> RenderableType:
        if self._over and not self._progress.finished:  # it goes on no more: nothing turns
            return self._table() if self._rows else Text("")
        below = Group(self._progress, Text(f"  {self._note}"))
        return Group(self._table(), below) if self._rows else below

    def _table(self) -> RenderableType:
        """Return the last rounds; what does not fit is left out by columns, never by digits."""
        columns = self._columns()
        gap = 2 if self._console.width >= WIDE_COLUMNS else 1
        kept = set(range(len(columns)))
        for column in sorted(columns, key=lambda each: -each.rank):
            if sum(columns[each].width + gap for each in kept) - gap <= self._console.width:
                break
            kept.discard(columns.index(column))
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
        for place in sorted(kept):
            table.add_column(columns[place].heading, justify="right", no_wrap=True)
        for cells in zip(*(columns[place].cells for place in sorted(kept)), strict=True):
            table.add_row(*cells)
        if left := len(columns) - len(kept):
            more = f"{left} more columns do not fit; metrics.jsonl has them"
            return Group(table, Text(more, style="dim"))
        return table

    def _columns(self) -> list[_Column]:
        """Return all columns in their order, each with how soon it is left out."""
        rows, wide = self._rows[-ROWS_SHOWN:], self._console.width >= WIDE_COLUMNS
        columns = [
            _Column("round", [str(row["round"]) for row in rows], 0),
            _Column("clients", [_clients(row) for row in rows], 1),
        ]
        for place, (part, name) in enumerate(_metric_names(self._rows)):
            cells = [_number((row.get(part) or {}).get(name)) for row in rows]
            rank = 3 + place + (0 if name in ("loss", "accuracy") else 1000)
            columns.append(_Column(f"{part}\n{name}", cells, rank))
        columns.append(_Column("seconds", [f"{row.get('duration_s') or 0:.2f}" for row in rows], 2))
        for heading in ("sent", "received") if wide else ():
            cells = [amount(row.get(f"bytes_{heading}") or 0) for row in rows]
            columns.append(_Column(heading, cells, 10_000))
        return columns


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cells: list[str]
    rank: int
    """The column with the largest is left out first where there is no room."""

    @property
    def width(self) -> int:
        return max(len(text) for text in (*self.heading.split("\n"), *self.cells))


def _metric_names(rows: list[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (part, metric) of all rows: what clients measured, then the server; loss first."""
    found = {(part, name) for row in rows for part in PARTS for name in row.get(part) or {}}
    return sorted(found, key=lambda each: (PARTS.index(each[0]), each[1] != "loss", each[1]))


def _round_line(row: Mapping[str, Any], rounds: int | None) -> str:
    total = f"/{rounds}" if rounds else ""
    parts = [f"round {row['round']}{total}"]
    for part in PARTS:
        names = [name for which, name in _metric_names([row]) if which == part]
        metrics = [f"{name} {_number(row[part][name])}" for name in names]
        parts += [" ".join([part, *metrics])] if metrics else []
    parts.append(f"clients {_clients(row)}")
    parts.append(f"{row.get('duration_s') or 0:.2f} s")
    if "virtual_s" in row:
        parts.append(f"at {row['virtual_s']:.0f} s of virtual time")
    parts.append(f"{amount(row.get('bytes_sent') or 0)} out")
    parts.append(f"{amount(row.get('bytes_received') or 0)} in")
    return "  ".join(parts)


def _clients(row: Mapping[str, Any]) -> str:
    failures = row.get("failures") or 0
    return f"{row.get('clients', 0)}" + (f" ({failures} failed)" if failures else "")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 100 else f"{value:.4g}"
