"""Chooses the executor of a simulation: runs a few clients on each that applies, and times them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, MessageType, RecordDict

from ...apps import App
from ...config import Config, build_algorithm, training_record
from ...flower import params_to_arrays
from ...module_params import build_module, params_of_module
from ...strategies.broadcast import Broadcast
from .contract import Executor, Teller

__all__ = ["Choice", "choose_executor"]

SLICE = 16
"""Clients of the vectorized slice; the others are timed on two."""
LONG_S = 60.0
"""Worker processes take seconds to start: they are tried where a run would take longer."""

Make = Callable[[str, Teller], Executor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The executor that was chosen, and why, in a sentence."""

    name: str
    reason: str


def choose_executor(app: App, clients: int, make: Make) -> Choice:
    """Return the executor for a run: the one whose clients took the least time.

    `make` builds an executor by name, over clients of its own. A plain Flower app is not tried: its clients' code may do
    anything, and what it does would be done twice.
    """
    config = app.config
    if config is None:
        return Choice(
            name="sequential",
            reason="a Flower app's clients are not run for a trial; "
            '"processes" runs them side by side',
        )
    seconds: dict[str, float] = {}
    notes: list[str] = []
    try:
        order = _order(app, config, clients)
    except Exception as error:  # the app's code; the run itself will say what is wrong
        return Choice(name="sequential", reason=f"no trial: {app.explain(error)}")
    for name in ("vectorized", "sequential"):
        spent_s, note = _timed(make, name, order)
        notes += [note] * bool(note)
        if spent_s is not None:
            seconds[name] = spent_s
    cores = os.cpu_count() or 1
    if cores > 1 and seconds and min(seconds.values()) * _trainings(config) > LONG_S:
        spent_s, note = _timed(make, "processes", order)
        notes += [note] * bool(note)
        if spent_s is not None:
            seconds["processes"] = spent_s
    if not seconds:  # the run itself will say what is wrong
        return Choice(name="sequential", reason="; ".join(notes) or "nothing else runs")
    best = min(seconds, key=lambda name: seconds[name])
    return Choice(name=best, reason="; ".join([_table(seconds), *notes]))


def _table(seconds: Mapping[str, float]) -> str:
    shown = (f"{name} {spent_s * 1e3:.3g} ms" for name, spent_s in seconds.items())
    return f"a client takes {', '.join(shown)}"


def _trainings(config: Config) -> float:
    cohort, clients = config.run.cohort, config.simulation.clients
    drawn = cohort if isinstance(cohort, int) else cohort * clients
    return drawn * config.run.rounds


def _order(app: App, config: Config, count: int) -> Broadcast:
    params = params_of_module(build_module(app.load_task(), config.run.seed))
    algorithm = build_algorithm(config)
    asked: dict[str, Any] = {
        **training_record(config),
        **algorithm.client_config,
        "server-round": 1,
    }
    sent = params_to_arrays(algorithm.sent(algorithm.init(params)))
    content = RecordDict({"arrays": sent, "config": ConfigRecord(asked)})
    cohort = range(1, min(count, SLICE) + 1)
    return Broadcast(content, MessageType.TRAIN, cohort, group_id="1", id_prefix="trial-")


def _timed(make: Make, name: str, order: Broadcast) -> tuple[float | None, str]:
    """Return the seconds a client took, or None, and why an executor does not apply."""
    reasons: list[str] = []
    teller = Teller(event=lambda kind, detail: reasons.append(str(detail.get("reason", kind))))
    if name == "sequential":
        order = order.to(order.clients[:2])
    try:
        executor = make(name, teller)
        try:
            for _ in range(2):  # the first time, data are loaded and memory is taken
                began_s = time.perf_counter()
                replies = list(executor.execute(order))
                spent_s = time.perf_counter() - began_s
        finally:
            executor.close()
    except Exception as error:  # whatever it is: another executor may do
        return None, f"{name} does not run here: {type(error).__name__}: {error}"
    if reasons:
        return None, f"{name} does not apply: {reasons[0]}"
    if any(reply.has_error() for reply in replies):
        return None, f"{name} failed: {next(r for r in replies if r.has_error()).error.reason}"
    return spent_s / len(order), ""
