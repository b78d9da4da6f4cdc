"""Whole runs with [simulation.devices]: rows, tables, resume, and what a slow third misses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from meadow.errors import ConfigError
from meadow.simulations.run import resume, simulate

from .test_simulate import TASK, StoppedHereError, rows_of, sha256_of

CONFIG = """
[run]
rounds = 4
seed = 3
min_clients = 3
deadline_s = 60
[strategy]
server_learning_rate = 0.05
[training]
batch_size = 10
learning_rate = 0.2
[simulation]
clients = 9
executor = "sequential"
[simulation.devices]
examples_per_s = 10
examples_per_s_spread = 0
bandwidth_spread = 0
latency_s = 1
speeds = "speeds.csv"
"""
SLOW = (3, 6, 9)
EXECUTORS = ["sequential", "vectorized", "processes"]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Nine clients of 30 examples each: six take 4 s and a little, a third a minute and more."""
    folder = tmp_path / "timed_app"
    folder.mkdir()
    (folder / "task.py").write_text(TASK.replace("FAILS", "-1"))
    (folder / "meadow.toml").write_text(CONFIG)
    speeds = "".join(f"{client},0.5\n" for client in SLOW)
    (folder / "speeds.csv").write_text(f"client,examples_per_s\n{speeds}")
    return folder


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_slow_third_misses_the_deadline(app: Path, tmp_path: Path, executor: str) -> None:
    """Its updates do not count, the rounds last until the deadline, and all of it is told."""
    told: list[tuple[str, Mapping[str, Any]]] = []
    summary = simulate(
        app,
        out=tmp_path / "out",
        executor=executor,
        on_event=lambda kind, detail: told.append((kind, detail)),
    )
    assert (summary["status"], summary["rounds"]) == ("finished", 4)
    rows = rows_of(tmp_path / "out")
    assert [(row["clients"], row["failures"]) for row in rows] == [(6, 3)] * 4
    # 60 s of training; then the evaluation of 10 examples: 1 s, 2 s, and the params' way
    lasted = [after["virtual_s"] - before["virtual_s"] for before, after in pairwise(rows)]
    assert all(62 < took_s < 62.01 for took_s in [rows[0]["virtual_s"], *lasted])
    for line in lines_of(tmp_path / "out"):
        assert (line["late"], line["failed"]) == (list(SLOW), list(SLOW))
        assert sorted(line["clients"]) == [1, 2, 4, 5, 7, 8]
    reasons = {detail["reason"] for kind, detail in told if kind == "client_failed"}
    assert reasons == {"no answer within 60 s"}


def test_the_executor_does_not_change_the_clock(app: Path, tmp_path: Path) -> None:
    """Nor who counts: only the last digits of what they learn."""
    timed = ["simulation.devices.dropout=0.2", "simulation.devices.examples_per_s_spread=1"]
    seen = []
    for executor in EXECUTORS:
        out = tmp_path / executor
        simulate(app, out=out, executor=executor, overrides=timed)
        seen.append(
            [
                (row["virtual_s"], row["clients"], line.get("late"), line.get("failed"))
                for row, line in zip(rows_of(out), lines_of(out), strict=True)
            ]
        )
    assert seen[0] == seen[1] == seen[2]
    assert len({clients for _, clients, _, _ in seen[0]}) > 1


def test_with_time_for_everybody_nothing_changes(app: Path, tmp_path: Path) -> None:
    """The model is that of a run without a clock, to the bit; only the rows say the time."""
    simulate(app, out=tmp_path / "timed", overrides=["run.deadline_s=600"])
    without = (app / "meadow.toml").read_text().partition("[simulation.devices]")[0]
    (app / "meadow.toml").write_text(without)
    simulate(app, out=tmp_path / "plain", overrides=["run.deadline_s=600"])
    assert sha256_of(tmp_path / "timed") == sha256_of(tmp_path / "plain")
    timed = rows_of(tmp_path / "timed")
    assert [row.pop("virtual_s") > 0 for row in timed] == [True] * 4
    assert timed == rows_of(tmp_path / "plain")


CHANCES = [
    "simulation.devices.dropout=0.2",
    "simulation.devices.failure=0.1",
    "simulation.devices.available_share=0.6",
    "simulation.devices.period_s=200",
    "run.cohort=6",
    "run.min_clients=1",
]


@pytest.mark.parametrize("last", [0, 2])
def test_an_interrupted_run_goes_on_at_its_time(app: Path, tmp_path: Path, last: int) -> None:
    """Killed within a round and resumed: the same cohorts, times, and model to the bit."""
    simulate(app, out=tmp_path / "whole", overrides=CHANCES)
    assert all(row["failures"] for row in rows_of(tmp_path / "whole"))

    def kill(event: str, detail: Mapping[str, Any]) -> None:
        if event == "round_started" and detail["round"] == last + 1:
            raise StoppedHereError

    out = tmp_path / "killed"
    with pytest.raises(StoppedHereError):
        simulate(app, out=out, overrides=CHANCES, on_event=kill)
    assert resume(out)["status"] == "finished"
    assert rows_of(out) == rows_of(tmp_path / "whole")
    assert lines_of(out) == lines_of(tmp_path / "whole")
    assert sha256_of(out) == sha256_of(tmp_path / "whole")


def test_a_quorum_that_cannot_be_met_ends_the_run(app: Path, tmp_path: Path) -> None:
    """If nobody ever answers, the summary says by when they should have."""
    summary = simulate(app, out=tmp_path / "out", overrides=["simulation.devices.dropout=1.0"])
    assert summary["status"] == "failed"
    assert "quorum not met: 0 of 3 updates" in summary["cause"]
    assert "no answer within 60 s" in summary["cause"]


def test_a_missing_file_leaves_no_folder(app: Path, tmp_path: Path) -> None:
    """What the section names is read before anything starts."""
    (app / "speeds.csv").unlink()
    with pytest.raises(ConfigError, match=r"speeds\.csv cannot be read"):
        simulate(app, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
