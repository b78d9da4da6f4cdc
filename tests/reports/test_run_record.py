"""Run folders: finished, failed, under way, and those that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from meadow.errors import ConfigError
from meadow.reports.run_record import read_run

from .conftest import MakeRun


def test_a_finished_run(make_run: MakeRun) -> None:
    """Settings, columns, elapsed time, the final and the best round."""
    run = read_run(make_run("run", rounds=4, virtual_s=3.0, privacy={"epsilon": 1.5}))
    assert run.status == "finished"
    assert run.settings == {
        "run.rounds": "4",
        "training.learning_rate": "0.1",
        "strategy.name": "fedavg",
    }
    assert run.elapsed_s.tolist() == [0.5, 1.0, 1.5, 2.0]
    assert run.final is not None and run.final.round == 4
    assert run.best is not None and set(run.best.values) == {
        f"{part}.{name}"
        for part in ("train", "evaluate", "server")
        for name in ("loss", "accuracy")
    }
    assert run.columns.column("epsilon").tolist() == [1.5] * 4


def test_a_run_under_way(make_run: MakeRun) -> None:
    """Without a summary the rows say what is final and best so far; a cut line is no error."""
    folder = make_run("run", rounds=5, status=None)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 6, "tr')
    run = read_run(folder)
    assert (run.status, run.cause) == ("under way", "")
    assert run.final is not None and run.final.round == 5
    assert run.best is not None and run.best.round == 4, "the last one that was evaluated"


def test_metrics_that_are_no_numbers_are_left_out(make_run: MakeRun) -> None:
    """A diverged round has no value; texts and nulls neither."""
    odd = {"loss": float("nan"), "accuracy": None, "name": "x", "f1": 0.5}
    run = read_run(make_run("run", rounds=1, status=None, train=odd))
    assert run.final is not None and run.final.values == {"train.f1": 0.5}


FAULTS = {
    "nothing": ((), "there is no such folder; give the folder of a run"),
    "empty": ({}, "is no run folder: it has no metrics.jsonl; give what `meadow simulate --out`"),
    "not begun": (
        {"meadow.toml": "", "checkpoints/x": ""},
        "the run has not completed a round; try again later",
    ),
    "runs below": ({"a/metrics.jsonl": "", "b/metrics.jsonl": ""}, "holds 2; give them, as .*/a"),
    "damaged rows": ({"metrics.jsonl": "no\n"}, "metrics.jsonl: line 1 is no JSON object"),
    "damaged summary": ({"summary.json": "["}, "summary.json: is no JSON object; remove it"),
    "damaged settings": (
        {"metrics.jsonl": "", "meadow.toml": "["},
        "meadow.toml: is not valid TOML",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_folder_is_named(tmp_path: Path, fault: str) -> None:
    """The error names the folder or the file, and what would be right."""
    files, sentence = FAULTS[fault]
    folder = tmp_path / "given"
    if files != ():
        folder.mkdir()
    for name, text in dict(files).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=sentence) as raised:
        read_run(folder)
    assert str(raised.value).startswith(str(folder))
