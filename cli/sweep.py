"""`meadow sweep`: simulate an app with every combination of settings, several at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError, MeadowError
from ..machine.process_limits import available_cores
from ..sweeps.children import ChildCommand, Children
from ..sweeps.combinations import Combination, grid_of
from ..sweeps.outcome import Group, best_group, compared_metric, groups_of
from ..sweeps.plan import RunProgress, Sweep, command_of, plan_sweep, state_of
from ..sweeps.record import hold_folder, record_of, write_record
from .output import Format, FormatOption, say, show_rows
from .sweep_view import SweepView

__all__ = ["sweep"]

INTERRUPTED = 130
FAILURES_SHOWN_MAX = 5
METRICS_SHOWN_MAX = 4
"""Columns of the table; sweep.json and --format json have all metrics."""

Runs = list[tuple[Combination, RunProgress]]


def sweep(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="a folder with an app")],
    settings: Annotated[
        list[str], typer.Option("--set", help="values of a setting: run.seed=1,2,3")
    ],
    jobs: Annotated[
        int | None, typer.Option(help="runs at a time; default: one a core", min=1, max=1024)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the sweep's folder, new or interrupted")] = None,
    best: Annotated[
        str | None, typer.Option(help="the metric that decides: server.accuracy")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="how many clients, for a Flower app", min=1)
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Simulate an app under every combination of the values; call it again to go on."""
    if best is not None and not re.fullmatch(r"(train|evaluate|server)\.\S+", best):
        raise ConfigError(
            f"--best must be train., evaluate. or server. and a metric's name, got {best!r}"
        )
    moment = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    target = out or Path("runs") / f"{folder.resolve().name}-sweep-{moment}"
    planned = plan_sweep(folder, grid_of(settings), out=target, clients=clients)
    with hold_folder(target) as lock:
        _record(planned, _states(planned, {}), best)
        stopped, errors = _run(planned, jobs or available_cores(), best, format, lock)
        runs = _states(planned, errors)
        record, groups, decisive = _record(planned, runs, best)
    _tell(groups, decisive, record, target, format)
    _conclude(runs, stopped, best, groups)


def _states(planned: Sweep, errors: dict[str, str]) -> Runs:
    """Return the progress of all runs, from their folders; `errors` has those of lost processes."""
    return [
        (each, _with_error(state_of(planned.folder(each)), errors.get(each.name)))
        for each in planned.grid.combinations
    ]


def _with_error(state: RunProgress, error: str | None) -> RunProgress:
    if not error or state.status in ("finished", "stopped"):
        return state
    return replace(state, status="failed", cause=state.cause or error)


def _run(
    planned: Sweep, at_once: int, metric: str | None, format: Format, lock: int
) -> tuple[bool, dict[str, str]]:
    """Run the unfinished runs; return whether the sweep was stopped, and errors by run."""
    by_name = {each.name: each for each in planned.grid.combinations}
    left = [
        each for each in by_name.values() if state_of(planned.folder(each)).status != "finished"
    ]
    errors: dict[str, str] = {}
    view = SweepView(runs=len(by_name), done=len(by_name) - len(left), metric=metric, format=format)

    def end(name: str, code: int, error: str) -> None:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if code and not children.stops:
            errors[name] = error if code > 0 else f"the run was ended by {how}: {error}"
        view.end(name, _with_error(state_of(planned.folder(by_name[name])), errors.get(name)))

    children = Children(at_once=at_once, on_event=view.show, on_end=end, keep_open=(lock,))
    with view:
        children.run([_job(planned, each) for each in left])
    return children.stops > 0, errors


def _job(planned: Sweep, combination: Combination) -> ChildCommand:
    return ChildCommand(
        name=combination.name,
        command=lambda: command_of(planned, combination),
        log=planned.out / "logs" / f"{combination.name}.txt",
    )


def _record(
    planned: Sweep, runs: Runs, wanted: str | None
) -> tuple[dict[str, Any], list[Group], str | None]:
    groups = groups_of(runs)
    metric = compared_metric(groups, wanted)
    best = best_group(groups, metric) if metric else None
    record = record_of(planned, runs, groups, metric=metric, best=best)
    write_record(planned.out, record)
    return record, groups, metric


# ---------------------------------------------------------------- the end


def _tell(
    groups: Sequence[Group],
    metric: str | None,
    record: dict[str, Any],
    target: Path,
    format: Format,
) -> None:
    if format is Format.TEXT:
        names = list({name: None for group in groups for name in group.metrics})
        names.sort(key=lambda name: name != metric)
        shown = names[:METRICS_SHOWN_MAX]
        columns = {key: key for group in groups for key in group.settings}
        columns |= {"finished": "finished", **{name: name for name in shown}}
        rows = [_row(group, shown) for group in groups]
        show_rows(format, rows, columns=columns, empty="no run")
    best = record["best"]
    text = f"see {target / 'sweep.json'}; curves:  meadow report {target}"
    if best is not None and metric is not None and len(groups) > 1:
        what = " ".join(f"{key}={value}" for key, value in best["settings"].items())
        text = f"best: {what} with {metric} {best['metrics'][metric]['mean']:.4f}\n{text}"
    say(format, text, event="summary", folder=str(target), **record)


def _row(group: Group, metrics: Sequence[str]) -> dict[str, str]:
    row = {**group.settings, "finished": f"{group.finished} of {len(group.runs)}"}
    for name in metrics:
        spread = group.metrics.get(name)
        deviation = "" if spread is None or spread.std is None else f" ± {spread.std:.4f}"
        row[name] = "-" if spread is None else f"{spread.mean:.4f}{deviation}"
    return row


def _conclude(runs: Runs, stopped: bool, wanted: str | None, groups: Sequence[Group]) -> None:
    """Exit with code 130 if the sweep was stopped, or with an error if runs failed."""
    failed = [(each.name, state) for each, state in runs if state.status == "failed"]
    if stopped:
        raise typer.Exit(INTERRUPTED)
    if failed:
        told = [f"{name}: {state.cause}" for name, state in failed[:FAILURES_SHOWN_MAX]]
        more = len(failed) - len(told)
        told += [f"and {more} more, in sweep.json"] if more else []
        raise MeadowError(
            f"{len(failed)} of {len(runs)} runs failed; call the command again with the same "
            "--out to go on with them\n" + "\n".join(told)
        )
    if wanted and compared_metric(groups, wanted) is None:
        known = ", ".join(sorted({name for group in groups for name in group.metrics}))
        raise MeadowError(f"--best {wanted}: no run has it; there are {known or 'no metrics'}")
