"""Which charts a report has: the panels of metrics, of the single clients, and of each round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .charts import Band, Line, Panel
from .client_record import SPREAD
from .columns import Columns, Values, drawable
from .run_record import PARTS
from .shown_run import ShownRun, size, time_unit

__all__ = [
    "METRICS_MAX",
    "client_panels",
    "metrics_left_out",
    "metrics_of",
    "over_rounds",
    "over_time",
    "over_virtual_time",
    "privacy_panels",
    "round_panels",
]

METRICS_MAX = 24
"""Metrics that are drawn; the names come from files."""
BANDS_MAX = 2
"""With more runs than this the areas of their clients would hide each other."""
MARGIN = 0.05

Axis = Callable[[ShownRun], Values]


def metrics_of(runs: Sequence[ShownRun]) -> list[str]:
    """Return the metrics of all runs: loss, accuracy, then by name; each train to server."""
    return sorted(_all_metrics(runs), key=_order)[:METRICS_MAX]


def metrics_left_out(runs: Sequence[ShownRun]) -> int:
    """Return how many metrics there are beyond `METRICS_MAX`."""
    unread = {name for run in runs for name in run.record.columns.left_out}
    return max(0, len(_all_metrics(runs) | unread) - METRICS_MAX)


def _all_metrics(runs: Sequence[ShownRun]) -> set[str]:
    names = {name for run in runs for name in run.record.columns.names}
    return {name for name in names if name.partition(".")[0] in PARTS and "." in name}


def _order(metric: str) -> tuple[int, str, int]:
    part, _, name = metric.partition(".")
    return {"loss": 0, "accuracy": 1}.get(name, 2), name, PARTS.index(part)


def over_rounds(runs: Sequence[ShownRun]) -> Iterator[Panel]:
    """Yield every metric over rounds."""
    yield from _curves(runs, lambda run: run.record.columns.rounds, "round", whole=True)


def over_time(runs: Sequence[ShownRun]) -> Iterator[Panel]:
    """Yield every metric over the time that the run took."""
    divisor, unit = time_unit(max((_last(run.record.elapsed_s) for run in runs), default=0.0))
    yield from _curves(runs, lambda run: run.record.elapsed_s / divisor, f"time ({unit})")


def over_virtual_time(runs: Sequence[ShownRun]) -> Iterator[Panel]:
    """Yield every metric over the clock of the simulated clients, of runs that have one."""
    timed = [run for run in runs if "virtual_s" in run.record.columns]
    if timed:
        divisor, unit = time_unit(max(_last(_virtual_s(run)) for run in timed))
        yield from _curves(timed, lambda run: _virtual_s(run) / divisor, f"virtual time ({unit})")


def _virtual_s(run: ShownRun) -> Values:
    return run.record.columns.column("virtual_s")


def _last(values: Values) -> float:
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else 0.0


def _curves(
    runs: Sequence[ShownRun], axis: Axis, x_label: str, *, whole: bool = False
) -> Iterator[Panel]:
    for metric in metrics_of(runs):
        part, _, name = metric.partition(".")
        lines = [_line(run, axis, run.record.columns.column(metric)) for run in runs]
        yield Panel(
            title=f"{part} {name}",
            x_label=x_label,
            lines=lines,
            y_limits=_limits(runs, [f"{each}.{name}" for each in PARTS]),
            whole_x=whole,
        )


def _line(run: ShownRun, axis: Axis, y: Values) -> Line:
    return Line(x=axis(run), y=y, colour=run.colour, dash=run.dash)


def _limits(runs: Sequence[ShownRun], metrics: Sequence[str]) -> tuple[float, float] | None:
    """Return the same limits for a metric wherever it was measured, so that parts compare."""
    columns = [run.record.columns.column(metric) for run in runs for metric in metrics]
    values = np.concatenate(columns)
    values = values[drawable(values)]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    margin = MARGIN * (high - low) or MARGIN * abs(high) or MARGIN
    return low - margin, high + margin


# ---------------------------------------------------------------- the single clients


def client_panels(runs: Sequence[ShownRun]) -> Iterator[Panel]:
    """Yield how each metric is spread over the clients."""
    metrics = {metric for run in runs for metric in run.record.clients.spreads}
    for metric in sorted(metrics, key=_order)[:METRICS_MAX]:
        spreads = [
            (run, run.record.clients.spreads[metric])
            for run in runs
            if metric in run.record.clients.spreads
        ]
        part, _, name = metric.partition(".")
        bands = [_band(run, spread) for run, spread in spreads] if len(spreads) <= BANDS_MAX else []
        yield Panel(
            title=f"{part} {name} of clients",
            x_label="round",
            lines=[line for run, spread in spreads for line in _spread_lines(run, spread)],
            bands=bands,
        )


def _band(run: ShownRun, spread: Columns) -> Band:
    low, _, high, _ = (spread.column(name) for name in SPREAD)
    return Band(x=spread.rounds, low=low, high=high, colour=run.colour)


def _spread_lines(run: ShownRun, spread: Columns) -> Iterator[Line]:
    median, worst = spread.column("median"), spread.column("worst")
    yield Line(x=spread.rounds, y=median, colour=run.colour, dash=run.dash)
    yield Line(x=spread.rounds, y=worst, colour=run.colour, dash="dotted", faint=True)


# ---------------------------------------------------------------- each round


def round_panels(runs: Sequence[ShownRun]) -> Iterator[Panel]:
    """Yield who answered, what failed, how long it took and what was sent, round by round."""
    yield _of_column(runs, "clients", "clients")
    if any(run.total("failures") for run in runs):
        yield _of_column(runs, "failures", "clients that failed")
    if any(run.record.clients.late.total("late") for run in runs):
        lines = [
            Line(
                x=run.record.clients.late.rounds,
                y=run.record.clients.late.column("late"),
                colour=run.colour,
                dash=run.dash,
            )
            for run in runs
        ]
        yield Panel(title="clients too late", x_label="round", lines=lines, from_zero=True)
    yield _of_column(runs, "duration_s", "seconds a round", y_label="s")
    for name, title in (("bytes_sent", "sent a round"), ("bytes_received", "received a round")):
        divisor, unit = size(max((_highest(run, name) for run in runs), default=0.0))
        yield _of_column(runs, name, title, divisor=divisor, y_label=unit)


def privacy_panels(runs: Sequence[ShownRun]) -> Iterator[Panel]:
    """Yield the privacy that was spent, of runs that account for it."""
    private = [run for run in runs if "epsilon" in run.record.columns]
    if private:
        yield _of_column(private, "epsilon", "epsilon spent so far")


def _highest(run: ShownRun, name: str) -> float:
    values = run.record.columns.column(name)
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else 0.0


def _of_column(
    runs: Sequence[ShownRun], name: str, title: str, *, divisor: float = 1.0, y_label: str = ""
) -> Panel:
    lines = [
        _line(
            run, lambda each: each.record.columns.rounds, run.record.columns.column(name) / divisor
        )
        for run in runs
    ]
    return Panel(title=title, x_label="round", lines=lines, y_label=y_label, from_zero=True)
