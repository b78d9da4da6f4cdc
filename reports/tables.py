"""The tables of a report: the runs, their settings, their final and best rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .client_record import lower_is_better
from .markup import Html, element, table
from .panels import metrics_of
from .run_record import RunRecord, Scores
from .shown_run import ShownRun, duration, number, size

__all__ = ["runs_table", "scores_table", "settings_that_differ", "shared_settings"]

SETTINGS_MAX = 200
VALUE_LENGTH_MAX = 200


def runs_table(runs: Sequence[ShownRun]) -> Html:
    """Return a line a run: how far it is, and what it took."""
    headings = ["run", "status", "rounds", "time", "sent", "received", "failures"]
    timed = any("virtual_s" in run.record.columns for run in runs)
    private = any("epsilon" in run.record.columns for run in runs)
    headings += [*(["virtual time"] if timed else []), *(["epsilon"] if private else [])]
    return table(headings, [_run_row(run, timed, private) for run in runs])


def _run_row(run: ShownRun, timed: bool, private: bool) -> list[str]:
    elapsed = run.record.elapsed_s
    done = f"{run.record.final.round if run.record.final else 0}"
    planned = run.record.settings.get("run.rounds")
    row = [
        run.label,
        element("span", run.record.status, class_=f"status {_tone(run.record)}"),
        f"{done} of {planned}" if planned and planned != done else done,
        duration(float(elapsed[-1]) if len(elapsed) else 0.0),
        _amount(run.total("bytes_sent")),
        _amount(run.total("bytes_received")),
        f"{run.total('failures'):.0f}",
    ]
    row += [duration(run.last("virtual_s"))] if timed else []
    return row + ([number(run.last("epsilon"))] if private else [])


def _tone(record: RunRecord) -> str:
    return {"finished": "good", "failed": "bad"}.get(record.status, "open")


def _amount(size_bytes: float) -> str:
    divisor, unit = size(size_bytes)
    return f"{size_bytes / divisor:.{0 if unit == 'B' else 1}f} {unit}"


# ---------------------------------------------------------------- metrics


def scores_table(runs: Sequence[ShownRun], which: Callable[[RunRecord], Scores | None]) -> Html:
    """Return the metrics of one round of each run; of several runs the best value is bold."""
    metrics = metrics_of(runs)
    scores = [(run, which(run.record)) for run in runs]
    known = [each.values for _, each in scores if each is not None]
    best = {}
    for metric in metrics:
        values = [each[metric] for each in known if metric in each]
        if len(runs) > 1 and values:
            best[metric] = min(values) if lower_is_better(metric) else max(values)
    rows = []
    for run, each in scores:
        row: list[str] = [run.label, "-" if each is None else str(each.round)]
        for metric in metrics:
            value = math.nan if each is None else each.values.get(metric, math.nan)
            bold = metric in best and value == best[metric]
            row.append(element("strong", number(value)) if bold else number(value))
        rows.append(row)
    return table(["run", "round", *(metric.replace(".", " ", 1) for metric in metrics)], rows)


# ---------------------------------------------------------------- settings


def settings_that_differ(runs: Sequence[ShownRun]) -> Html | None:
    """Return the settings in which the runs differ; None if there are none."""
    keys = [key for key in _keys(runs) if len(_values(runs, key)) > 1]
    if not keys:
        return None
    rows = [[run.label, *(_value(run, key) for key in keys)] for run in runs]
    return table(["run", *keys], rows)


def shared_settings(runs: Sequence[ShownRun]) -> Html | None:
    """Return the settings that all runs share; None if there are none."""
    keys = [key for key in _keys(runs) if len(_values(runs, key)) == 1]
    return table(["key", "value"], [[key, _value(runs[0], key)] for key in keys]) if keys else None


def _keys(runs: Sequence[ShownRun]) -> list[str]:
    return list({key: None for run in runs for key in run.record.settings})[:SETTINGS_MAX]


def _values(runs: Sequence[ShownRun], key: str) -> set[str | None]:
    return {run.record.settings.get(key) for run in runs}


def _value(run: ShownRun, key: str) -> str:
    value = run.record.settings.get(key, "-")
    return value if len(value) <= VALUE_LENGTH_MAX else f"{value[:VALUE_LENGTH_MAX]}…"
