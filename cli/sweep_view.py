"""Shows a sweep: a table of the runs under way, or a line for each run that ended."""

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

from ..strategies.rounds.progress import PREFERRED
from ..sweeps.plan import RunProgress
from .output import Format, plain

__all__ = ["SweepView", "metric_of"]

ROWS_SHOWN = 24
"""Runs under way that are shown; the bar counts them all."""


class SweepView:
    """Shows the events of many runs."""

    def __init__(self, *, runs: int, done: int, metric: str | None, format: Format) -> None:
        self._format = format
        self._metric = metric
        self._runs, self._done = runs, done
        self._under_way: dict[str, dict[str, Any]] = {}
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("runs"),
            TimeElapsedColumn(),
        )
        self._task = self._progress.add_task("sweep", total=runs, completed=done)
        self._console = Console(highlight=False)
        self._live: Live | None = None
        if format is Format.TEXT and sys.stdout.isatty():
            self._live = Live(
                console=self._console, get_renderable=self._render, refresh_per_second=4
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

    def show(self, run: str, event: Mapping[str, Any]) -> None:
        """Record an event of a run and show it; `end` shows its summary."""
        if event["event"] == "summary":
            return
        if self._format is Format.JSON:
            print(json.dumps({**event, "run": run}, default=str), flush=True)
            return
        known = self._under_way.setdefault(run, {})
        if event["event"] == "ready":
            known["rounds"] = event.get("rounds")
        elif event["event"] == "round_committed":
            known["row"] = event
        elif event["event"] == "stopping":
            self._say(f"{run}: stopping after this round; press Ctrl-C again to stop at once")

    def end(self, run: str, state: RunProgress) -> None:
        """Show how a run ended."""
        self._under_way.pop(run, None)
        self._done += 1
        self._progress.update(self._task, completed=self._done)
        if self._format is Format.JSON:
            end = {"event": "run_ended", "run": run, "status": state.status, "cause": state.cause}
            print(json.dumps({**end, "rounds": state.rounds, "final": state.final}), flush=True)
            return
        metric = metric_of(state.final or {}, self._metric)
        cause = f": {state.cause}" if state.cause else ""
        self._say(
            f"{self._done}/{self._runs}  {run}  {state.status}, {state.rounds} rounds in "
            f"{state.duration_s:.1f} s{f'  {metric}' if metric else ''}{cause}"
        )

    def _say(self, text: str) -> None:
        if self._live is None:
            print(plain(text), flush=True)
        else:
            self._console.print(plain(text), markup=False, soft_wrap=True)

    def _render(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading in ("run", "round", "of", "metric"):
            table.add_column(heading)
        for run, known in list(self._under_way.items())[:ROWS_SHOWN]:
            row = known.get("row") or {}
            cells = [run, row.get("round", "-"), known.get("rounds") or "-"]
            metric = metric_of(row, self._metric)
            table.add_row(*(Text(plain(str(cell))) for cell in (*cells, metric)))
        return Group(table, self._progress) if self._under_way else self._progress


def metric_of(row: Mapping[str, Any], wanted: str | None) -> str:
    """Return a round's value of a metric, or of the first usual one, as text; "" without it."""
    for metric in [wanted] if wanted else [name for name, _ in PREFERRED]:
        part, _, name = metric.partition(".")
        value = (row.get(part) or {}).get(name)
        if isinstance(value, int | float):
            return f"{metric} {value:.4f}"
    return ""
