"""`auto` picks the executor with which the run is over first, and tries none that cannot win."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from flwr.app import Message, MetricRecord, RecordDict

from meadow.apps.folder import App
from meadow.errors import AgreementError
from meadow.flower.messages import identify_process
from meadow.simulations.executors import auto
from meadow.simulations.executors.auto import Candidate, Choice, choose_executor
from meadow.simulations.executors.contract import EventSink, Executor

identify_process(run_id=1, node_id=0)

TASK = """
import meadow
import torch

def load(site):
    return meadow.ClientData(train=(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)))

task = meadow.Task(model=lambda: torch.nn.Linear(2, 2), loss=meadow.cross_entropy, client_data=load)
"""

ALONE, STACKED = Candidate("sequential"), Candidate("vectorized")
THREADS, PROCESSES = Candidate("sequential", 2), Candidate("processes")
GROUPS = Candidate("vectorized", workers=2)


class Clock:
    """Time that passes when clients are run."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


class Timed:
    """An executor whose clients take so many seconds each."""

    name, combines = "timed", False

    def __init__(self, clock: Clock, one_s: float) -> None:
        self._clock, self._one_s = clock, one_s

    def execute(self, messages: Sequence[Message]) -> Iterator[Message]:
        for message in messages:
            self._clock.now_s += self._one_s
            yield Message(RecordDict({"metrics": MetricRecord()}), reply_to=message)

    def close(self) -> None:
        pass


class Disagrees(Timed):
    """An executor that does not train what a client alone does."""

    def execute(self, messages: Sequence[Message]) -> Iterator[Message]:
        raise AgreementError("'a.weight' of client 1 is up to 0.1 apart")


def choose(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: dict[Candidate, float | None],
    *,
    clients: int = 100,
    rounds: int = 10,
) -> tuple[Choice, list[Candidate]]:
    """Return the choice where clients take so long (None: it disagrees), and what was tried."""
    (folder / "task.py").write_text(TASK)
    (folder / "meadow.toml").write_text(
        f"[run]\nrounds = {rounds}\n[simulation]\nclients = {clients}\n"
    )
    clock, tried = Clock(), []
    monkeypatch.setattr(auto, "time", clock)
    monkeypatch.setattr(auto, "available_cores", lambda: 2)
    monkeypatch.setattr(auto, "threads_at_most", lambda present: 2)

    def make(candidate: Candidate, sink: EventSink) -> Executor:
        tried.append(candidate)
        one_s = seconds[candidate]
        return Timed(clock, one_s) if one_s is not None else Disagrees(clock, 0)

    told: list[Candidate] = []
    app = App.load(folder)
    choice = choose_executor(app, clients, make, trying=lambda each, clients: told.append(each))
    assert told == tried
    return choice, tried


def test_the_fastest_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models go into one tensor, and workers that could not win are not started."""
    choice, tried = choose(tmp_path, monkeypatch, {ALONE: 0.004, STACKED: 0.0005})
    assert choice.candidate == STACKED and tried == [ALONE, STACKED]


def test_a_short_run_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial would take longer than the run."""
    choice, tried = choose(tmp_path, monkeypatch, {ALONE: 0.004}, clients=4, rounds=2)
    assert choice.candidate == ALONE and tried == [ALONE]
    assert "short" in choice.reason


def test_processes_are_tried_where_they_can_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a minute is enough, if a core each saves more than the workers' start."""
    seconds = {ALONE: 0.05, STACKED: 0.07, THREADS: 0.045, PROCESSES: 0.026, GROUPS: 0.035}
    choice, tried = choose(tmp_path, monkeypatch, dict(seconds))
    assert choice.candidate == PROCESSES and tried == [ALONE, STACKED, THREADS, PROCESSES]


def test_a_cohort_is_divided_where_that_can_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors of many clients in a process a core; clients alone could not be as fast."""
    seconds = {ALONE: 0.05, STACKED: 0.04, THREADS: 0.045, PROCESSES: 0.026, GROUPS: 0.021}
    choice, tried = choose(tmp_path, monkeypatch, dict(seconds), rounds=20)
    assert choice.candidate == GROUPS and "vectorized in 2 processes 21 ms" in choice.reason
    assert tried == [ALONE, STACKED, THREADS, GROUPS]


def test_no_cohort_is_divided_for_an_accelerator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes would wait for each other there."""
    monkeypatch.setattr(auto, "choose_device", lambda wanted: "cuda:0")
    seconds = {ALONE: 0.05, STACKED: 0.02}
    choice, tried = choose(tmp_path, monkeypatch, dict(seconds), rounds=20)
    assert choice.candidate == STACKED and GROUPS not in tried


def test_the_start_of_workers_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that turn out hardly faster do not win back what they take to start."""
    seconds = {ALONE: 0.05, STACKED: 0.06, THREADS: 0.052, PROCESSES: 0.048, GROUPS: 0.049}
    choice, tried = choose(tmp_path, monkeypatch, dict(seconds))
    assert choice.candidate == ALONE and PROCESSES in tried


def test_threads_are_tried_with_large_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where two threads share the work of one client, no process has to be started."""
    seconds = {ALONE: 0.05, STACKED: 0.06, THREADS: 0.027, PROCESSES: 0.026}
    choice, tried = choose(tmp_path, monkeypatch, dict(seconds), rounds=6)
    assert choice.candidate == THREADS and PROCESSES not in tried


def test_who_disagrees_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the tensor and the distance."""
    choice, _ = choose(tmp_path, monkeypatch, {ALONE: 0.004, STACKED: None})
    assert choice.candidate == ALONE and "'a.weight' of client 1" in choice.reason
