"""What a person sees of a run: a table that grows and a progress bar, or quiet lines.

On a terminal the view is drawn anew as events arrive; elsewhere every round is one line, and
with `--format json` every event is one JSON object on a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
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

from .output import Format, plain
from .sentences import sentence_of

__all__ = ["RunView", "amount"]

ROWS_SHOWN = 12
WIDE_COLUMNS = 100
"""From this width on there is room for the bytes, too."""
FAILURES_TOLD_MAX = 5
"""Failed clients that are told in a round; the round's line counts them all."""
PARTS = ("train", "evaluate", "server")


class RunView:
    """Shows the events of one run, whoever sends them."""

    def __init__(self, title: str, *, format: Format = Format.TEXT) -> None:
        self._format = format
        self._title = title
        self._rows: list[Mapping[str, Any]] = []
        self._rounds: int | None = None
        self._failures: tuple[Any, int] = (None, 0)
        """A round, and how many failed clients of it were told."""
        self._note = "starting"
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
            self._live.__exit__(kind, error, trace)

    def show(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Take note of an event and show it."""
        if self._format is Format.JSON:
            print(json.dumps({"event": kind, **detail}, default=str), flush=True)
            return
        lasting = plain(self._take(kind, detail) or "")
        if lasting and self._live is None:
            print(lasting, flush=True)
        elif lasting and kind != "round_committed":
            self._console.print(lasting, markup=False, soft_wrap=True)  # stays above the table

    def _take(self, kind: str, detail: Mapping[str, Any]) -> str | None:
        """Remember what the table and the note need; return a line that is to stay."""
        if kind == "ready":
            self._rounds = detail.get("rounds") or None
            self._progress.update(self._task, total=self._rounds)
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
        known_round, told = self._failures
        told = told + 1 if known_round == detail.get("round") else 1
        self._failures = detail.get("round"), told
        if told > FAILURES_TOLD_MAX + 1:
            return None
        if told > FAILURES_TOLD_MAX:
            return f"round {detail.get('round')}: more clients failed"
        return sentence_of(kind, detail)

    def _render(self) -> RenderableType:
        below = Group(self._progress, Text(f"  {self._note}"))
        return Group(self._table(), below) if self._rows else below

    def _table(self) -> Table:
        wide = self._console.width >= WIDE_COLUMNS
        table = Table(
            box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0), header_style="bold"
        )
        names = _metric_names(self._rows)
        table.add_column("round", justify="right")
        table.add_column("clients", justify="right")
        for part, name in names:
            table.add_column(f"{part}\n{name}", justify="right")
        for heading in ("seconds", *(("sent", "received") if wide else ())):
            table.add_column(heading, justify="right")
        for row in self._rows[-ROWS_SHOWN:]:
            cells = [str(row["round"]), _clients(row)]
            cells += [_number((row.get(part) or {}).get(name)) for part, name in names]
            cells += [f"{row.get('duration_s') or 0:.2f}"]
            cells += [amount(row.get(key) or 0) for key in ("bytes_sent", "bytes_received") if wide]
            table.add_row(*cells)
        return table


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
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"


def amount(size_bytes: float) -> str:
    """Return a size in bytes as people say it: 12.3 kB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000 or unit == "GB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    raise AssertionError("unreachable")
