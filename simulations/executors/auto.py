"""Chooses the executor of a simulation: runs a few clients on each that may win, and times them.

A trial may not cost more than it saves. Two clients are run one by one first; a run that would be
over in seconds then goes on like that. The cohort in one tensor is tried next, and compared with
clients alone. Threads and worker processes are tried where they could save more than the trial and
the workers' start take, at their very best: a core each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, MessageType, RecordDict

from ...apps.folder import App
from ...config.rules.builders import build_algorithm, training_record
from ...config.sections.model import Config
from ...flower.messages import params_to_arrays
from ...machine.process_limits import available_cores, threads_at_most
from ...strategies.rounds.broadcast import Broadcast
from ...training.device_use import choose_device
from ...training.local.app import DEVICE_VARIABLE
from ...training.module_params import build_module, params_of_module
from .contract import EventSink, Executor

__all__ = ["Candidate", "Choice", "Trying", "choose_executor"]

SLICE = 16
"""Clients of a slice of those executors that take several at once; the others are timed on two."""
SHORT_S = 1.0
"""A run that takes less than this, in seconds, is not worth a trial."""
START_S = 6.0
"""What worker processes take to start: they import torch, and load the app."""
RUNS_MIN, RUNS_MAX, TRIAL_S = 3, 6, 0.5
"""A slice is run so often at least: in the first run data are loaded and memory is taken, and in the second one
perhaps by a worker that was not ready before. It is run so often at most, as long as its runs take less than so
many seconds together, or the fastest one is alone: a busy moment must not decide."""
ALIKE = 1.1
"""Times that are no further apart are alike."""
THREADED_S = 0.02
"""Operations of clients that take less are too small for threads."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An executor, and with how many threads or in how many processes it computes; None is its own
    choice."""

    name: str
    threads: int = 1
    workers: int | None = None

    def __str__(self) -> str:
        if self.workers is not None:
            return f"{self.name} in {self.workers} processes"
        return self.name if self.threads == 1 else f"{self.name} with {self.threads} threads"


Make = Callable[[Candidate, EventSink], Executor]
Trying = Callable[[Candidate, int], None]
"""Called before each trial with the candidate and the number of clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The executor that was chosen, and why, in a sentence."""

    candidate: Candidate
    reason: str


def choose_executor(
    app: App,
    clients: int,
    make: Make,
    *,
    trying: Trying = lambda candidate, clients: None,
) -> Choice:
    """Return the executor for a run: the one with the shortest expected time.

    `make` builds an executor, over clients of its own; `trying` is called before each trial. A plain
    Flower app is not tried: its clients' code may have side effects, which a trial would repeat.
    """
    alone, config = Candidate("sequential"), app.config
    if config is None:
        return Choice(
            candidate=alone,
            reason="a Flower app's clients are not run for a trial; "
            '"processes" runs them side by side',
        )
    try:
        order = _order(app, config, clients)
    except Exception as error:  # the app's code; the run itself will say what is wrong
        return Choice(candidate=alone, reason=f"no trial: {app.explain(error)}")
    trial = _ExecutorTrial(make, order, _trainings(config), trying)
    one_s = trial.of(alone, clients=2)
    if one_s is not None and one_s * trial.trainings <= SHORT_S:
        return Choice(candidate=alone, reason=f"a client takes {one_s * 1e3:.3g} ms: a short run")
    together_s = trial.of(Candidate("vectorized"), clients=SLICE)
    threads = threads_at_most(1)
    if one_s is not None and threads > 1 and one_s > THREADED_S:
        trial.of(Candidate("sequential", threads), clients=2, at_best_s=one_s / threads)
    cores = min(available_cores(), len(order))
    if cores > 1 and not app.only_here:  # which no other process has
        on_cpu = choose_device(os.environ.get(DEVICE_VARIABLE, "auto")) == "cpu"
        if together_s is not None and on_cpu:  # an accelerator is not cores that divide a cohort
            groups = Candidate("vectorized", workers=cores)
            trial.of(groups, clients=SLICE, at_best_s=together_s / cores, start_s=START_S)
        if one_s is not None:
            processes = Candidate("processes")
            trial.of(processes, clients=SLICE, at_best_s=one_s / cores, start_s=START_S)
    return trial.best() or Choice(candidate=alone, reason=trial.notes or "nothing else runs")


class _ExecutorTrial:
    def __init__(self, make: Make, order: Broadcast, trainings: float, trying: Trying) -> None:
        self._trying = trying
        self._make, self._order, self.trainings = make, order, trainings
        self._seconds: dict[Candidate, float] = {}
        self._starts_s: dict[Candidate, float] = {}
        self._notes: list[str] = []

    @property
    def notes(self) -> str:
        """Why candidates do not apply."""
        return "; ".join(self._notes)

    def of(
        self,
        candidate: Candidate,
        *,
        clients: int,
        at_best_s: float | None = None,
        start_s: float = 0.0,
    ) -> float | None:
        """Return the seconds that a client took, None if the candidate does not apply.

        With `at_best_s`, what a client takes at the very best, the candidate is tried only where
        it would then save the run more than its start and the trial.
        """
        if at_best_s is not None and self._seconds:
            saved_s = (min(self._seconds.values()) - at_best_s) * self.trainings
            trial_s = start_s + RUNS_MIN * at_best_s * clients
            if saved_s <= start_s + trial_s:
                return None
        order = self._order.to(self._order.clients[:clients])
        self._trying(candidate, len(order))
        spent_s, note = _timed(self._make, candidate, order)
        self._notes += [note] * bool(note)
        if spent_s is not None:
            self._seconds[candidate], self._starts_s[candidate] = spent_s, start_s
        return spent_s

    def best(self) -> Choice | None:
        """Return the candidate with the shortest expected time, if any applies."""
        if not self._seconds:
            return None
        run_s = {
            each: self._starts_s[each] + one_s * self.trainings
            for each, one_s in self._seconds.items()
        }
        chosen = min(run_s, key=lambda each: run_s[each])
        return Choice(candidate=chosen, reason="; ".join([_table(self._seconds), *self._notes]))


def _table(seconds: Mapping[Candidate, float]) -> str:
    shown = (f"{each} {spent_s * 1e3:.3g} ms" for each, spent_s in seconds.items())
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


def _is_enough(times_s: list[float]) -> bool:
    if len(times_s) < RUNS_MIN or len(times_s) == RUNS_MAX:
        return len(times_s) == RUNS_MAX
    fastest, second, *_ = sorted(times_s)
    return sum(times_s) > TRIAL_S and second <= ALIKE * fastest


def _timed(make: Make, candidate: Candidate, order: Broadcast) -> tuple[float | None, str]:
    """Return the seconds a client took, or None, and why an executor does not apply."""
    reasons: list[str] = []
    sink = EventSink(event=lambda kind, detail: reasons.append(str(detail.get("reason", kind))))
    try:
        executor = make(candidate, sink)
        try:
            times_s: list[float] = []
            while not _is_enough(times_s):
                began_s = time.perf_counter()
                replies = list(executor.execute(order))
                times_s.append(time.perf_counter() - began_s)
        finally:
            executor.close()
    except Exception as error:  # whatever it is: another executor may do
        return None, f"{candidate} does not run here: {type(error).__name__}: {error}"
    if reasons:
        return None, f"{candidate} does not apply: {reasons[0]}"
    if any(reply.has_error() for reply in replies):
        failed = next(reply for reply in replies if reply.has_error())
        return None, f"{candidate} failed: {failed.error.reason}"
    return min(times_s) / len(order), ""
