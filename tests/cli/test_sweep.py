"""`meadow sweep`: a grid of real runs, its table, interruptions, and failures."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from meadow.cli.sweep_view import SweepView

from .conftest import Meadow

RATES = "training.learning_rate=0.1,0.01"


def sweep_json(folder: str = "sweep") -> dict[str, Any]:
    """Return what sweep.json says."""
    return dict(json.loads((Path(folder) / "sweep.json").read_text()))


def models(folder: str = "sweep") -> dict[str, bytes]:
    """Return the runs' models by name."""
    return {
        path.parent.name: path.read_bytes() for path in Path(folder).glob("*/model.safetensors")
    }


def test_a_grid_with_seeds(meadow: Meadow, app: Path) -> None:
    """A line a run, a table with mean and deviation, sweep.json; again repeats nothing."""
    asked = ("sweep", "my_app", "--set", RATES, "--set", "run.seed=1,2", "--out", "sweep")
    said = meadow(*asked, "--set", "run.rounds=2", "--jobs", 2)
    assert (said.code, said.err) == (0, "")
    *ends, heading, first, second, best, see = said.out.splitlines()
    assert sorted(end.split("  ")[1] for end in ends) == sorted(models())
    assert all("finished, 2 rounds in " in end and "  server.accuracy 0." in end for end in ends)
    assert heading.split()[:3] == ["training.learning_rate", "finished", "server.accuracy"]
    assert first.startswith("0.1 ") and second.startswith("0.01 ")
    assert first.count(" ± ") == 4 and "2 of 2" in first
    assert best.startswith("best: training.learning_rate=0.1 with server.accuracy 0.")
    assert see == "see sweep/sweep.json; curves:  meadow report sweep"
    record = sweep_json()
    assert record["fixed"] == {"run.rounds": "2"}
    assert [run["run"] for run in record["runs"]] == [
        f"learning_rate={rate},seed={seed}" for rate in ("0.1", "0.01") for seed in (1, 2)
    ]
    finals = [run["final"]["server"]["accuracy"] for run in record["runs"][:2]]
    spread = record["groups"][0]["metrics"]["server.accuracy"]
    assert spread["mean"] == pytest.approx(sum(finals) / 2) and spread["count"] == 2

    again = meadow("sweep", "my_app", *asked[2:4], *asked[4:], "--set", "run.rounds=2")
    assert again.out.splitlines() == [heading, first, second, best, see]
    other = meadow(*asked, "--set", "run.rounds=3")
    assert other.code == 2 and "was run with other settings or another environment" in other.err
    with (app / "task.py").open("a") as file:
        file.write("# changed\n")
    changed = meadow(*asked, "--set", "run.rounds=2")
    assert changed.code == 2 and "is of another version of the app" in changed.err


def test_an_interrupted_sweep_goes_on(
    meadow: Meadow, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the runs after their rounds; called again, every model is as if undisturbed."""
    fixed = ("--set", "run.rounds=40", "--set", "simulation.executor=sequential")
    asked = ("sweep", "my_app", "--set", "run.seed=1,2", *fixed, "--jobs", 1)
    show = SweepView.show

    def interrupt(view: SweepView, run: str, event: Mapping[str, Any]) -> None:
        show(view, run, event)
        if event["event"] == "round_committed" and event["round"] == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(SweepView, "show", interrupt)
    said = meadow(*asked, "--out", "sweep", "--format", "json")
    assert said.code == 130 and said.err == "meadow: interrupted\n"
    (ended,) = said.events("run_ended")
    assert (ended["run"], ended["status"]) == ("seed=1", "stopped") and 2 <= ended["rounds"] < 40
    assert [run["status"] for run in sweep_json()["runs"]] == ["stopped", "waiting"]

    monkeypatch.setattr(SweepView, "show", show)
    again = meadow(*asked, "--out", "sweep", "--format", "json")
    assert again.code == 0
    assert [run["status"] for run in again.events("summary")[0]["runs"]] == ["finished"] * 2
    first = next(each for each in again.objects if each["event"] == "round_committed")
    assert (first["run"], first["round"]) == ("seed=1", ended["rounds"] + 1)
    for seed in (1, 2):
        out = ("--set", f"run.seed={seed}", "--out", f"whole/seed={seed}")
        assert meadow("simulate", "my_app", *fixed, *out).code == 0
    assert models("sweep") == models("whole") and len(models("whole")) == 2


def test_a_failed_run_does_not_stop_the_others(meadow: Meadow, app: Path) -> None:
    """Exit code 1 at the end, with which run and why; the others have their results."""
    text = (app / "task.py").read_text()
    broken = 'if "run.seed=2" in __import__("sys").argv:\n        raise ValueError("no such layer")\n    '
    (app / "task.py").write_text(text.replace("return nn.Seq", f"{broken}return nn.Seq", 1))
    said = meadow("sweep", "my_app", "--set", "run.seed=1,2,3", "--set", "run.rounds=1")
    assert said.code == 1
    head, cause = said.err.splitlines()
    assert head.startswith("meadow: 1 of 3 runs failed; call the command again with the same --out")
    assert cause.startswith("seed=2: ") and "ValueError: no such layer" in cause
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("my_app-sweep-2")
    statuses = [run["status"] for run in sweep_json(str(folder))["runs"]]
    assert statuses == ["finished", "failed", "finished"]
    assert sweep_json(str(folder))["groups"][0]["metrics"]["server.accuracy"]["count"] == 2


WRONG = {
    "key": (["--set", "run.sed=1,2"], "run.sed is not a known key; did you mean run.seed?"),
    "value": (["--set", "run.seed=1,x"], "run.seed must be a whole number >= 0"),
    "combination": (
        ["--set", "run.cohort=2,5", "--set", "simulation.clients=4"],
        "run.cohort = 5 is more than simulation.clients = 4",
    ),
    "folder": (["--set", "run.seed=1,2", "--out", "my_app"], "not empty and not a sweep's folder"),
    "metric": (["--set", "run.seed=1", "--best", "accuracy"], "--best must be train., evaluate."),
    "clients": (["--set", "run.seed=1", "--clients", 3], "write --set simulation.clients=N"),
    "nothing": ([], "Missing option '--set'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_call_starts_nothing(meadow: Meadow, app: Path, wrong: str) -> None:
    """Every combination is checked before the first run: exit code 2 and one line."""
    options, sentence = WRONG[wrong]
    said = meadow("sweep", "my_app", *options)
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err and not Path("runs").exists()


def test_one_sweep_a_folder(meadow: Meadow, app: Path) -> None:
    """While a sweep, or a run of a killed one, holds the folder, another is refused."""
    from meadow.sweeps.record import hold_folder

    with hold_folder(Path("sweep")):
        said = meadow("sweep", "my_app", "--set", "run.seed=1,2", "--out", "sweep")
    assert said.code == 1
    assert "sweep: another sweep is running in it, or runs of one that was killed" in said.err
