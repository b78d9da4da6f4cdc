"""`simulate`: an app in, a run folder out; the same numbers however often it was interrupted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from meadow.errors import AppError, ConfigError
from meadow.simulations.run import default_folder, resume, simulate

TASK = """
import meadow
import torch
from torch import nn


def samples(seed, count):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long()


def load(site):
    if site.index == FAILS:
        raise OSError("the disk is gone")
    return meadow.ClientData(train=samples(site.index, 30), test=samples(50 + site.index, 10))


task = meadow.Task(
    model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2)),
    loss=lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"),
    metrics={"accuracy": lambda o, t: (o.argmax(dim=1) == t).float()},
    client_data=load,
    server_data=lambda: samples(99, 40),
)
"""

CONFIG = """
[run]
rounds = 6
seed = 3
cohort = 3
[strategy]
server_optimizer = "adam"
server_learning_rate = 0.05
[training]
batch_size = 10
learning_rate = 0.2
[simulation]
clients = 4
executor = "sequential"
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app of four clients that learns something in six rounds."""
    folder = tmp_path / "small_app"
    folder.mkdir()
    (folder / "task.py").write_text(TASK.replace("FAILS", "-1"))
    (folder / "meadow.toml").write_text(CONFIG)
    return folder


def sha256_of(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        assert row.pop("duration_s") >= 0
    return rows


def test_a_run_leaves_its_folder(app: Path, tmp_path: Path) -> None:
    """Everything that the design promises is there, and the summary is what was returned."""
    out = tmp_path / "out"
    events: list[str] = []
    summary = simulate(app, out=out, on_event=lambda kind, detail: events.append(kind))
    names = {path.name for path in out.iterdir()}
    assert {"meadow.toml", "metrics.jsonl", "model.safetensors", "checkpoints"} <= names
    assert {"tensorboard", "summary.json"} <= names
    assert summary == json.loads((out / "summary.json").read_text())
    assert (summary["status"], summary["cause"], summary["rounds"]) == ("finished", None, 6)
    rows = rows_of(out)
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert set(rows[0]) == {
        "round", "clients", "failures", "train", "evaluate", "server", "bytes_sent",
        "bytes_received", "privacy",
    }  # fmt: skip
    assert rows[0]["clients"] == 3 and rows[0]["failures"] == 0
    for part in ("train", "evaluate", "server"):
        assert set(rows[0][part]) == {"loss", "accuracy"}
    assert summary["final"] == {p: rows[-1][p] for p in ("round", "train", "evaluate", "server")}
    assert summary["best"]["round"] in range(1, 7)
    assert rows[-1]["server"]["loss"] < rows[0]["server"]["loss"]
    assert events[0] == "ready" and events.count("round_committed") == 6


def test_the_same_seed_gives_the_same_model(app: Path, tmp_path: Path) -> None:
    """Two runs agree in every byte and every metric; another seed gives another model."""
    for name in ("one", "two"):
        simulate(app, out=tmp_path / name)
    simulate(app, out=tmp_path / "other", overrides=["run.seed=4"])
    assert sha256_of(tmp_path / "one") == sha256_of(tmp_path / "two")
    assert rows_of(tmp_path / "one") == rows_of(tmp_path / "two")
    assert sha256_of(tmp_path / "one") != sha256_of(tmp_path / "other")


class StoppedHereError(BaseException):
    """Stands for a process that is killed."""


@pytest.mark.parametrize("last", [0, 1, 4])
@pytest.mark.parametrize("kind", ["round_committed", "round_started"])
def test_an_interrupted_run_goes_on_bit_by_bit(
    app: Path, tmp_path: Path, kind: str, last: int
) -> None:
    """Killed between or within rounds and resumed, the model and metrics are those of one run."""
    simulate(app, out=tmp_path / "whole")

    def kill(event: str, detail: Mapping[str, Any]) -> None:
        if event == kind and detail["round"] == last + (kind == "round_started"):
            raise StoppedHereError

    out = tmp_path / "killed"
    if (kind, last) == ("round_committed", 0):
        pytest.skip("there is no round 0")
    with pytest.raises(StoppedHereError):
        simulate(app, out=out, on_event=kill)
    assert not (out / "summary.json").exists()
    summary = resume(out)
    assert (summary["status"], summary["rounds"]) == ("finished", 6)
    assert sha256_of(out) == sha256_of(tmp_path / "whole")
    assert rows_of(out) == rows_of(tmp_path / "whole")


def test_a_finished_run_is_not_changed_by_resuming(app: Path, tmp_path: Path) -> None:
    """There is nothing left to do, and the summary says the same as before."""
    before = simulate(app, out=tmp_path / "out")
    model = sha256_of(tmp_path / "out")
    after = resume(tmp_path / "out")
    assert {**after, "duration_s": 0} == {**before, "duration_s": 0}
    assert sha256_of(tmp_path / "out") == model


def test_a_failing_client_is_counted_and_passed_over(app: Path, tmp_path: Path) -> None:
    """Its exception is told with its name; the others make the round."""
    (app / "task.py").write_text(TASK.replace("FAILS", "1"))
    told: list[tuple[str, Any]] = []
    simulate(
        app,
        out=tmp_path / "out",
        overrides=["run.cohort=1.0", "run.rounds=2"],
        on_event=lambda kind, detail: told.append((kind, detail)),
    )
    assert [(row["clients"], row["failures"]) for row in rows_of(tmp_path / "out")] == [(3, 1)] * 2
    failed = [detail for kind, detail in told if kind == "client_failed"]
    assert failed[0]["client"] == 2 and "the disk is gone" in failed[0]["reason"]


def test_a_run_without_quorum_fails_with_a_cause(app: Path, tmp_path: Path) -> None:
    """The summary names the round, the numbers, a client and its reason."""
    (app / "task.py").write_text(TASK.replace("FAILS", "1"))
    overrides = ["run.cohort=1.0", "run.min_clients=4"]
    summary = simulate(app, out=tmp_path / "out", overrides=overrides)
    assert summary["status"] == "failed"
    assert "round 1: quorum not met: 3 of 4" in summary["cause"]
    assert "client 2: OSError: the disk is gone" in summary["cause"]
    assert (summary["rounds"], summary["final"], summary["best"]) == (0, None, None)


def test_clients_and_overrides_are_part_of_the_run(app: Path, tmp_path: Path) -> None:
    """What was asked for on the command line is in the folder, and holds when it goes on."""
    simulate(app, out=tmp_path / "out", clients=6, overrides=["run.rounds=1"])
    assert "clients = 6" in (tmp_path / "out" / "meadow.toml").read_text()
    assert resume(tmp_path / "out")["rounds"] == 1


def test_a_used_folder_is_refused(app: Path, tmp_path: Path) -> None:
    """A run does not write over another one."""
    simulate(app, out=tmp_path / "out", overrides=["run.rounds=1"])
    with pytest.raises(ConfigError, match="is not empty; continue that run with --resume"):
        simulate(app, out=tmp_path / "out")


def test_resuming_something_else_is_refused(app: Path, tmp_path: Path) -> None:
    """A folder of no simulation, or whose app was changed, is not continued."""
    with pytest.raises(ConfigError, match="it is not the folder of a simulation"):
        resume(tmp_path)
    simulate(app, out=tmp_path / "out", overrides=["run.rounds=1"])
    (app / "task.py").write_text(TASK.replace("FAILS", "-2"))
    with pytest.raises(ConfigError, match="was changed since"):
        resume(tmp_path / "out")


def test_a_broken_app_fails_before_it_runs(app: Path, tmp_path: Path) -> None:
    """A module that is missing is named, with the remedy."""
    (app / "task.py").write_text("import no_such_module\n")
    with pytest.raises(AppError, match="'no_such_module' installed, or misspelt"):
        simulate(app, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_default_folder_is_below_runs() -> None:
    """A run without --out has a folder of its own, named after the app and the time."""
    folder = default_folder("digits")
    assert folder.parent == Path("runs") and folder.name.startswith("digits-2")
