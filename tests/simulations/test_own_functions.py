"""Rules of aggregation and learning rates that are functions of the app."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meadow
from meadow.errors import AppError, ConfigError, RunError

from .test_own_selection import TASK

MINE = """
import numpy as np

SEEN = []

def krums(updates, *, byzantine):
    distances = np.sort(updates.distances_squared(), axis=1)
    score = distances[:, 1 : updates.count - byzantine - 1].sum(axis=1)
    return np.eye(updates.count)[np.argmin(score)]

def equal(updates, *, byzantine):
    return np.full(updates.count, 1 / updates.count)

def three(updates, *, byzantine):
    return [1, 2, 3]

def endless(updates, *, byzantine):
    return np.full(updates.count, np.nan)

def words(updates, *, byzantine):
    return ["a"] * updates.count

def fails(*args, **arguments):
    return 1 / 0

def steps(round_number, rounds):
    return 0.5 ** ((round_number - 1) // 2)

def negative(round_number, rounds):
    return -1.0

def text(round_number, rounds):
    return "1"

number = 3
"""
ROBUST = {"byzantine": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An app with such functions."""
    made = tmp_path / "app"
    made.mkdir()
    (made / "task.py").write_text(TASK)
    (made / "mine.py").write_text(MINE)
    (made / "meadow.toml").write_text("[run]\nrounds = 5\nmin_clients = 5\n")
    return made


def params(folder: Path, out: Path, executor: str = "sequential", **sections: Any) -> Any:
    """Return the params after a run."""
    run = meadow.simulate(folder, clients=6, executor=executor, out=out, progress=False, **sections)
    return run.params()


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "processes"])
def test_an_own_rule_is_the_one_that_it_repeats(
    folder: Path, tmp_path: Path, executor: str
) -> None:
    """Krum, written by the app, takes the update that Meadow's takes: the same bits."""
    one = {"simulation": {"workers": 1}} if executor == "processes" else {}
    found = []
    for name in ("krum", "mine:krums"):
        robust = {**ROBUST, "aggregation": name}
        place = tmp_path / name.replace(":", "-")
        found.append(params(folder, place, executor, robust=robust, **one))
    assert all(found[0][key].tobytes() == found[1][key].tobytes() for key in found[0])
    assert 'aggregation = "mine:krums"' in (place / "meadow.toml").read_text()


def test_what_comes_before_it_is_meadows(folder: Path, tmp_path: Path) -> None:
    """Clipped updates with equal weights are norm bounding, and a resumed run loads the rule again."""
    clipped = {**ROBUST, "preaggregation": ["clip"], "clip_norm": 0.01}
    ours = params(folder, tmp_path / "a", robust={**clipped, "aggregation": "mean"})
    own = params(folder, tmp_path / "b", robust={**clipped, "aggregation": "mine:equal"})
    for key, values in ours.items():
        np.testing.assert_allclose(own[key], values, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_an_own_schedule_is_the_one_that_it_repeats(
    folder: Path, tmp_path: Path, executor: str
) -> None:
    """Half the rate every two rounds, by Meadow's steps and by the app's function."""
    ours = {"schedule": "step", "step_rounds": 2, "decay": 0.5, "learning_rate": 0.1}
    own = {"schedule": "mine:steps", "learning_rate": 0.1}
    found = [
        params(folder, tmp_path / f"{place}", executor, training=said)
        for place, said in enumerate((ours, own))
    ]
    assert all(found[0][key].tobytes() == found[1][key].tobytes() for key in found[0])


@pytest.mark.parametrize(
    "sections",
    [
        {"strategy": "scaffold"},
        {"strategy": "feddyn"},
        {"privacy": {"differential_privacy": {"enabled": True, "noise_multiplier": 1e-9}}},
        {"privacy": {"secure_aggregation": {"enabled": True}}},
        {"settings": {"rounds.kind": "fedbuff", "rounds.buffer_size": 2}},
    ],
)
def test_a_schedule_goes_with_everything(
    folder: Path, tmp_path: Path, sections: dict[str, Any]
) -> None:
    """Algorithms that compute with the rate, and those whose rounds have keys of their own."""
    rate = {"learning_rate": 0.1}
    ours = {**rate, "schedule": "step", "step_rounds": 2, "decay": 0.5}
    found = [
        params(folder, tmp_path / f"{place}", training=said, run={"min_clients": 6}, **sections)
        for place, said in enumerate((ours, {**rate, "schedule": "mine:steps"}))
    ]
    for key, values in found[0].items():
        np.testing.assert_allclose(found[1][key], values, rtol=1e-6, atol=1e-6)


def test_a_resumed_run_goes_on_with_both(folder: Path, tmp_path: Path) -> None:
    """Interrupted after two rounds and resumed, the bits are those of an undisturbed run."""
    sections: dict[str, Any] = {
        "robust": {**ROBUST, "aggregation": "mine:krums"},
        "training": {"schedule": "mine:steps", "learning_rate": 0.1},
    }
    whole = params(folder, tmp_path / "a", **sections)

    def stop(kind: str, detail: Any) -> None:
        if kind == "round_committed" and detail["round"] == 2:
            raise KeyboardInterrupt

    meadow.simulate(
        folder, clients=6, executor="sequential", out=tmp_path / "b", progress=False,
        on_event=stop, **sections,
    )  # fmt: skip
    again = meadow.resume(tmp_path / "b", progress=False)
    assert again.summary["rounds"] == 5
    assert all(again.params()[key].tobytes() == values.tobytes() for key, values in whole.items())


@pytest.mark.parametrize(
    ("sections", "error", "says"),
    [
        ({"robust": {"aggregation": "mine:three"}}, RunError, r"return a number for each of the 6"),
        ({"robust": {"aggregation": "mine:words"}}, RunError, r"return a number for each of the 6"),
        ({"robust": {"aggregation": "mine:endless"}}, RunError, "weights that are not finite"),
        ({"robust": {"aggregation": "mine:fails"}}, RunError, "failed: ZeroDivisionError"),
        ({"robust": {"aggregation": "mine:number"}}, AppError, "a function that weighs a round's"),
        ({"robust": {"aggregation": "median_of_means"}}, ConfigError, "or as module:function"),
        ({"training": {"schedule": "mine:negative"}}, RunError, "a number from 0 to 1e"),
        ({"training": {"schedule": "mine:text"}}, RunError, "a number from 0 to 1e"),
        ({"training": {"schedule": "mine:fails"}}, RunError, "failed in round 1: ZeroDivision"),
        ({"training": {"schedule": "mine:gone"}}, AppError, "has no 'gone'"),
    ],
)
def test_mistakes_are_named(
    folder: Path, tmp_path: Path, sections: dict[str, Any], error: type[Exception], says: str
) -> None:
    """Before there is a folder, where that is possible."""
    with pytest.raises(error, match=says):
        params(folder, tmp_path / "run", **sections)
    assert (tmp_path / "run").exists() == (error is RunError)


def test_a_rule_has_enough_honest_clients(folder: Path, tmp_path: Path) -> None:
    """2 f + 1, which is refused before a round where min_clients does not guarantee it."""
    with pytest.raises(ConfigError, match="must be >= 7 for mine:equal with"):
        params(folder, tmp_path / "r", robust={"aggregation": "mine:equal", "byzantine": 3})
