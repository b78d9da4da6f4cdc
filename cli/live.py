"""What a person sees of a run: a table that grows and a progress bar, or quiet lines.

On a terminal the view is drawn anew as events arrive; elsewhere every round is one line, and
with `--format json` every event is one JSON object on a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .output import Format

__all__ = ["RunView", "amount"]

ROWS_SHOWN = 12


class RunView:
    """Shows the events of one run, whoever sends them."""

    def __init__(self, title: str, *, format: Format = Format.TEXT) -> None:
        self._title = title
        self._format = format
        self._terminal = format is Format.TEXT and sys.stdout.isatty()
        self._rows: list[Mapping[str, Any]] = []
        self._note = "waiting for clients"
        self._status = "running"
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("rounds"), TimeRemainingColumn(),
        )  # fmt: skip
        self._task = self._progress.add_task(title, total=None)
        self._live = Live(console=Console(), auto_refresh=False) if self._terminal else None
        self._rounds: int | None = None

    def __enter__(self) -> RunView:
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
            self._live.update(self._render(), refresh=True)
            self._live.__exit__(kind, error, trace)

    def show(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Take note of an event and show it."""
        if self._format is Format.JSON:
            print(json.dumps({"event": kind, **detail}, default=str), flush=True)
            return
        line = self._take(kind, detail)
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
        elif line:
            print(line, flush=True)

    def _take(self, kind: str, detail: Mapping[str, Any]) -> str | None:
        if kind == "ready":
            self._rounds = detail.get("rounds") or None
            self._progress.update(self._task, total=self._rounds)
            return None
        if kind == "round_committed":
            self._rows.append(detail)
            self._note = ""
            self._progress.update(self._task, completed=detail["round"])
            return _round_line(detail, self._rounds)
        if kind == "status":
            self._status = str(detail.get("status"))
            cause = f": {detail['cause']}" if detail.get("cause") else ""
            self._note = f"{self._status}{cause}"
            return f"{self._title} is {self._note}"
        text = _sentence(kind, detail)
        if text:
            self._note = text
        return text

    def _render(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold")
        names = sorted({name for row in self._rows for name in _metrics(row)})
        for heading in ("round", "clients", *names, "seconds", "sent", "received"):
            table.add_column(heading, justify="right")
        for row in self._rows[-ROWS_SHOWN:]:
            metrics = _metrics(row)
            table.add_row(
                str(row["round"]),
                _clients(row),
                *(_number(metrics.get(name)) for name in names),
                f"{row.get('duration_s') or 0:.2f}",
                amount(row.get("bytes_sent") or 0),
                amount(row.get("bytes_received") or 0),
            )
        return Group(table, self._progress, self._note)


def _metrics(row: Mapping[str, Any]) -> dict[str, float]:
    """Return a round's metrics under short names: central ones first, then the clients'."""
    found: dict[str, float] = {}
    for part in ("train", "evaluate", "server"):
        for name, value in (row.get(part) or {}).items():
            if isinstance(value, int | float):
                found[f"{part} {name}"] = value
    return found


def _round_line(row: Mapping[str, Any], rounds: int | None) -> str:
    total = f"/{rounds}" if rounds else ""
    metrics = "  ".join(f"{name} {_number(value)}" for name, value in _metrics(row).items())
    moved = f"{amount(row.get('bytes_sent') or 0)} out, {amount(row.get('bytes_received') or 0)} in"
    seconds = row.get("duration_s") or 0
    return f"round {row['round']}{total}  clients {_clients(row)}  {metrics}  {seconds:.2f} s  {moved}"


def _clients(row: Mapping[str, Any]) -> str:
    failures = row.get("failures") or 0
    return f"{row.get('clients', 0)}" + (f" ({failures} failed)" if failures else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _sentence(kind: str, detail: Mapping[str, Any]) -> str | None:
    if kind == "update_refused":
        return f"round {detail.get('round')}: update of client {detail.get('client')} refused: " + str(
            detail.get("reason")
        )
    if kind in ("client_failed", "failure"):
        return f"round {detail.get('round')}: client {detail.get('client')} failed: " + str(
            detail.get("reason")
        )
    if kind == "waiting":
        return f"waiting for clients: {detail.get('connected', '?')} of {detail.get('needed', '?')}"
    if kind == "worker_died":
        return f"the run worker died ({detail.get('how')}); it is started again"
    return None


def amount(size_bytes: float) -> str:
    """Return a size in bytes as people say it: 12.3 kB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000 or unit == "GB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    raise AssertionError("unreachable")
