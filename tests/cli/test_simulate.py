"""`meadow simulate`: what a person and a program hear, Ctrl-C, and going on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meadow.cli.live import RunView
from meadow.reports.run_record import read_run
from meadow.reports.sentences import sentence_of

from .conftest import Meadow

INTERRUPTING = """
import os, signal


def accuracy(outputs, targets):
    left = int(os.environ.get("BATCHES_UNTIL_CTRL_C", 0))
    os.environ["BATCHES_UNTIL_CTRL_C"] = str(left - 1)
    if left == 1:
        signal.raise_signal(signal.SIGINT)
    return meadow.accuracy(outputs, targets)
"""
BATCHES_A_ROUND = 5 * (200 // 20) + 5 + 2
"""Five clients train in batches of 20 and evaluate once; the server has two batches, and evaluates
them before the first round, too."""


@pytest.fixture
def interruptible(sequential_app: Path) -> Path:
    """An app that can press Ctrl-C itself, in the middle of a round."""
    path = sequential_app / "task.py"
    before, after = path.read_text().split("\n\ntask = ")
    after = after.replace("meadow.accuracy", "accuracy")
    path.write_text(f"{before}{INTERRUPTING}\n\ntask = {after}")
    return sequential_app


def test_a_person_reads_a_line_a_round(meadow: Meadow, sequential_app: Path) -> None:
    """Off a terminal: metrics, clients, time and traffic of each round, then where it is."""
    said = meadow("simulate", "my_app", "--rounds", 2, "--clients", 3, "--out", "run")
    first, second, last = said.out.splitlines()
    assert first.startswith("round 1/2  train loss 0.") and second.startswith("round 2/2  train")
    for part in ("evaluate loss 0.", "server loss 0.", "accuracy 0.", "clients 3  ", " kB out"):
        assert part in first
    assert last.startswith("finished 2 rounds in ") and last.endswith(" s; see run")
    assert (said.code, said.err) == (0, "")


def test_a_program_reads_events(meadow: Meadow, sequential_app: Path) -> None:
    """With --format json every line is an event; the last is the summary."""
    said = meadow("simulate", "my_app", "--rounds", 2, "--out", "run", "--format", "json")
    kinds = [each["event"] for each in said.objects]
    assert kinds == ["ready", *["round_started", "round_committed"] * 2, "summary"]
    assert said.objects[0] == {"event": "ready", "rounds": 2, "folder": "run", "clients": 5}
    summary = json.loads(Path("run/summary.json").read_text())
    assert said.objects[-1] == {"event": "summary", "folder": "run", **summary}


def test_options_environment_and_settings(
    meadow: Meadow, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment lies over the file, --set over the environment, all are in meadow.toml."""
    monkeypatch.setenv("MEADOW_RUN__ROUNDS", "7")
    monkeypatch.setenv("MEADOW_TRAINING__BATCH_SIZE", "50")
    said = meadow("simulate", "my_app", "--seed", 3, "--set", "run.rounds=1", "--out", "run")
    assert said.code == 0
    resolved = Path("run/meadow.toml").read_text()
    for line in ("rounds = 1\n", "batch_size = 50\n", "seed = 3\n"):
        assert line in resolved


def test_a_run_without_a_folder_is_below_runs(meadow: Meadow, app: Path) -> None:
    """Without --out a run has a folder of its own, which the last line names."""
    said = meadow("simulate", "my_app", "--rounds", 1)
    (folder,) = Path("runs").iterdir()
    assert said.out.splitlines()[-1].endswith(f"see {folder}")
    assert folder.name.startswith("my_app-2")


def test_clients_are_counted_alike_everywhere(meadow: Meadow, sequential_app: Path) -> None:
    """One of five fails: the same words and numbers in the lines, the table, the files, `run show`
    and the report; and each failure is told with where the rest is."""
    path = sequential_app / "task.py"
    text = path.read_text()
    start = "    return meadow.ClientData(train=samples(site.index, 200)"
    assert start in text
    failing = f'    if site.index == 3:\n        raise OSError("no disk")\n{start}'
    path.write_text(text.replace(start, failing))
    said = meadow("simulate", "my_app", "--rounds", 2, "--out", "run")
    told = [line for line in said.out.splitlines() if " failed: " in line]
    place = text.split(start)[0].count("\n") + 2
    assert told == [
        f"round {number}: client 4 failed: OSError: no disk (task.py, line {place}); the rest is in "
        "run/tracebacks.log"
        for number in (1, 2)
    ]
    assert said.out.count("clients 4 (1 failed)") == 2
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    summary = json.loads(Path("run/summary.json").read_text())
    assert [(row["clients"], row["failures"]) for row in rows] == [(4, 1)] * 2
    assert summary["failures"][0]["times"] == 2
    assert sentence_of("round_committed", rows[0]) == "round 1 is done: clients 4 (1 failed)"
    columns = read_run(Path("run")).columns
    assert columns.column("clients").tolist() == [4, 4]
    assert columns.total("failures") == 2
    view = RunView("run")
    view.show("round_committed", rows[0])
    with view._console.capture() as captured:
        view._console.print(view._table())
    assert "clients" in captured.get() and "4 (1 failed)" in captured.get()
    assert Path("run/tracebacks.log").read_text().count("client 4:\nTraceback") == 2


def test_ctrl_c_and_resume_give_the_model_of_one_run(
    meadow: Meadow, interruptible: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the run after its round; --resume goes on, and no byte differs."""
    monkeypatch.setenv("MEADOW_TRAINING__MOMENTUM", "0.5")
    assert meadow("simulate", "my_app", "--out", "whole").code == 0
    monkeypatch.setenv("BATCHES_UNTIL_CTRL_C", str(3 * BATCHES_A_ROUND - 10))
    stopped = meadow("simulate", "my_app", "--out", "run")
    assert stopped.code == 0
    assert "stopping after this round; press Ctrl-C again to stop at once" in stopped.out
    again = "stopped after round 3; continue with:  meadow simulate --resume run"
    assert stopped.out.splitlines()[-1] == again
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("stopped", 3)
    monkeypatch.delenv("MEADOW_TRAINING__MOMENTUM")  # the run keeps what it began with
    resumed = meadow("simulate", "--resume", "run")
    assert resumed.out.splitlines()[0] == "going on after round 3"
    assert resumed.out.splitlines()[1].startswith("round 4/10 ")
    whole = Path("whole/model.safetensors").read_bytes()
    assert Path("run/model.safetensors").read_bytes() == whole


def test_the_second_ctrl_c_stops_at_once(
    meadow: Meadow, interruptible: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round under way is given up; the committed ones stay."""
    task = (interruptible / "task.py").read_text()
    (interruptible / "task.py").write_text(task.replace("left == 1", "left in (1, 2)"))
    monkeypatch.setenv("BATCHES_UNTIL_CTRL_C", str(3 * BATCHES_A_ROUND - 10))
    stopped = meadow("simulate", "my_app", "--out", "run", "--format", "json")
    assert stopped.code == 0
    (summary,) = stopped.events("summary")
    assert (summary["status"], summary["cause"], summary["rounds"]) == ("stopped", "interrupted", 2)


FAULTS = {
    "the data are not there": (
        "return meadow.ClientData(train=samples(site.index, 200)",
        'raise OSError("no disk")\n    return meadow.ClientData(train=samples(site.index, 200)',
        (
            "round 1: quorum not met: 0 of 2 updates (clients 1, 2, 3, 4, 5: OSError: no disk "
            "(task.py, line "
        ),
    ),
    "the model cannot be built": (
        "return nn.Sequential(",
        'raise ValueError("no such layer")\n    return nn.Sequential(',
        "the app raised ValueError: no such layer (task.py, line 9)",
    ),
    "the loss is one number": (
        "loss=meadow.cross_entropy,",
        "loss=lambda out, want: meadow.cross_entropy(out, want).mean(),",
        "loss must give one value per example, shape (256,), got (); for torch's losses say",
    ),
    "training diverges": (
        "loss=meadow.cross_entropy,",
        "loss=lambda out, want: float('inf') * meadow.cross_entropy(out, want),",
        "the training loss is",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_run_says_the_cause_and_the_next_step(
    meadow: Meadow, app: Path, fault: str
) -> None:
    """Exit code 1; the error names the cause and the place in the app, and how to go on."""
    before, after, sentence = FAULTS[fault]
    text = (app / "task.py").read_text()
    assert before in text
    (app / "task.py").write_text(text.replace(before, after))
    said = meadow("simulate", "my_app", "--out", "run")
    assert said.code == 1
    cause, step = said.err.splitlines()
    assert cause.startswith("meadow: ") and sentence in cause
    assert step == "no round was completed; repair the cause, and simulate anew"
    assert "Traceback" not in said.out + said.err


def test_a_run_that_fails_later_can_go_on(
    meadow: Meadow, interruptible: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the cause is gone, --resume goes on after the last good round."""
    task = (interruptible / "task.py").read_text()
    failing = task.replace("signal.raise_signal(signal.SIGINT)", 'os.stat("no server data")')
    (interruptible / "task.py").write_text(failing)
    monkeypatch.setenv("BATCHES_UNTIL_CTRL_C", str(2 + 3 * BATCHES_A_ROUND))  # the last of round 3
    said = meadow("simulate", "my_app", "--out", "run", "--rounds", 4)
    assert said.code == 1
    cause, step = said.err.splitlines()
    assert "the app raised FileNotFoundError: [Errno 2] No such file" in cause
    assert step == "go on after round 2 with the same app:  meadow simulate --resume run"
    assert meadow("simulate", "--resume", "run").code == 0
    assert json.loads(Path("run/summary.json").read_text())["rounds"] == 4


def test_an_app_that_does_not_load_leaves_nothing(meadow: Meadow, app: Path) -> None:
    """Exit code 2, one line with the place, and no run folder."""
    (app / "task.py").write_text("import nowhere\n")
    said = meadow("simulate", "my_app")
    assert (said.code, said.out) == (2, "")
    assert "No module named 'nowhere' (task.py, line 1); is 'nowhere' installed" in said.err
    assert said.err.count("\n") == 1
    assert not Path("runs").exists()


def test_what_an_app_prints_is_not_between_the_lines(meadow: Meadow, sequential_app: Path) -> None:
    """A program reads JSON on every line, whatever the app prints while it is loaded or trains."""
    path = sequential_app / "task.py"
    path.write_text(path.read_text().replace("\n\ntask = ", '\n\nprint("hello")\ntask = '))
    said = meadow("simulate", "my_app", "--rounds", 1, "--out", "run", "--format", "json")
    assert said.objects[-1]["event"] == "summary"
    assert "hello" in said.err
