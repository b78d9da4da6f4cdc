"""Simulations begun from Python are those of the command line, and say what is wrong as it does."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meadow
from meadow.config.load import make_config
from meadow.errors import ConfigError, RunError
from meadow.strategies.algorithms.algorithm import Aggregate, State
from meadow.strategies.algorithms.builders import recipe_of
from meadow.strategies.algorithms.catalogue import CATALOGUE

APP = """
import meadow, torch
def samples(seed, count):
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs.sum(dim=1) > 0).long()
task = meadow.Task(
    model=lambda: torch.nn.Linear(4, 2), loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy},
    client_data=lambda site: meadow.ClientData(
        train=samples(site.index, 8), test=samples(100 + site.index, 4)
    ),
    server_data=lambda: samples(999, 50),
)
"""
SMALL: dict[str, Any] = {"clients": 3, "rounds": 2, "seed": 5, "executor": "sequential"}


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The same task in a folder."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "task.py").write_text(APP)
    (folder / "meadow.toml").write_text("[training]\nlearning_rate = 0.1\n")
    return folder


def assert_same(one: meadow.Run, other: meadow.Run) -> None:
    """Compare two runs' params, bit by bit."""
    ours, theirs = one.params(), other.params()
    assert list(ours) == list(theirs)
    for name, values in ours.items():
        assert values.tobytes() == theirs[name].tobytes()


def test_a_task_and_its_folder_give_one_model(task: meadow.Task, app: Path, tmp_path: Path) -> None:
    """To the last bit, with the same settings in both files."""
    made = meadow.simulate(task, out=tmp_path / "a", training={"learning_rate": 0.1}, **SMALL)
    read = meadow.simulate(app, out=tmp_path / "b", **SMALL)
    assert_same(made, read)
    assert made.config == read.config
    assert made.status == read.status == "finished"


@pytest.mark.parametrize(
    "strategy",
    [
        "fedprox",
        {"name": "fedprox", "proximal_mu": 0.3},
        meadow.fedprox(proximal_mu=0.3),
        meadow.fedavg(server_optimizer="adam", beta_1=0.5),
        meadow.scaffold(),
        meadow.fedbuff(buffer_size=2),
    ],
    ids=str,
)
def test_a_strategy_is_what_meadow_toml_would_say(
    task: meadow.Task, tmp_path: Path, strategy: Any
) -> None:
    """The run folder's meadow.toml names it with its arguments, and gives the run again."""
    first = meadow.simulate(task, strategy=strategy, out=tmp_path / "a", **SMALL)
    found = first.config
    if isinstance(strategy, str | Mapping):
        assert found.strategy.name == "fedprox"
    tables = {
        "strategy": {"name": found.strategy.name, **_given(strategy, found)},
        "asynchronous": {"kind": found.rounds.kind, **_rounds(found)},
    }
    again = meadow.simulate(task, out=tmp_path / "b", **tables, **SMALL)
    assert_same(first, again)


def _given(strategy: Any, found: meadow.Config) -> dict[str, Any]:
    if found.strategy.name == "fedprox":
        return {"proximal_mu": found.strategy.proximal_mu}
    recipe = None if isinstance(strategy, str | Mapping) else recipe_of(strategy)
    return dict(recipe.arguments) if recipe is not None and recipe.name == "fedavg" else {}


def _rounds(found: meadow.Config) -> dict[str, Any]:
    return {} if found.rounds.kind == "synchronous" else {"buffer_size": found.rounds.buffer_size}


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_builder_remembers_its_arguments(name: str) -> None:
    """The recipe gives the same algorithm; a part that was replaced leaves none."""
    entry = CATALOGUE[name]
    example = {
        key: entry.example[entry.arguments[key]]
        for key in entry.arguments
        if entry.arguments[key] in entry.example
    }
    made = entry.builder(**example)
    recipe = recipe_of(made)
    assert recipe is not None and (recipe.name, dict(recipe.arguments)) == (name, example)
    assert recipe_of(replace(made, apply=lambda state, aggregate: state)) is None
    assert recipe_of(replace(made, client_config={"proximal-mu": 1.0})) is None


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_an_algorithm_of_ones_own(task: meadow.Task, tmp_path: Path, executor: str) -> None:
    """Half a step of FedAvg's: its params are computed here by hand."""

    def apply(state: State, aggregate: Aggregate) -> State:
        moved = {n: v + 0.5 * (aggregate.mean[n] - v) for n, v in state.params.items()}
        return State(params=moved, round=state.round + 1)

    half = replace(meadow.fedavg(), name="half", apply=apply)
    small = {**SMALL, "rounds": 1, "executor": executor}
    plain = meadow.simulate(task, out=tmp_path / "plain", **small)
    mine = meadow.simulate(task, strategy=half, out=tmp_path / "half", **small)
    config = make_config({"run": {"seed": SMALL["seed"]}})
    from meadow.training.module_params import build_module, params_of_module

    begin = params_of_module(build_module(task, config.run.seed))
    for name, values in mine.params().items():
        expected = begin[name] + np.float32(0.5) * (plain.params()[name] - begin[name])
        np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"run": {"rounds": 3}}, r"run.rounds is given twice, as 2 and as 3"),
        ({"settings": {"run.rounds": 3}}, "run.rounds is given twice"),
        ({"training": {"epoch": 1}}, "training.epoch is not a known key; did you mean"),
        ({"training": {"epochs": -1}}, "training.epochs must be"),
        ({"settings": {"run.early_stopping.patience": "x"}}, "patience must be"),
        ({"settings": {"nonsense": 1}}, "nonsense is not a known key"),
        ({"strategy": 5}, "strategy must be a name"),
        ({"strategy": "fedavgg"}, "did you mean"),
        ({"strategy": meadow.fednova(), "training": {"optimizer": "adam"}}, "does not go with"),
        ({"executor": "processes"}, "loads the app in processes of its own"),
        ({"executor": "ray"}, "loads the app in processes of its own"),
        ({"strategy": meadow.fedbuff(weighting=lambda staleness: 1.0)}, "weighting of one's own"),
    ],
)
def test_mistakes_are_named(
    task: meadow.Task, tmp_path: Path, arguments: dict[str, Any], says: str
) -> None:
    """And no folder is left behind."""
    with pytest.raises(ConfigError, match=says):
        meadow.simulate(task, out=tmp_path / "run", **{**SMALL, **arguments})
    assert not (tmp_path / "run").exists()


def test_sections_as_objects(task: meadow.Task, tmp_path: Path) -> None:
    """An object gives what differs from its defaults, nested sections too."""
    run = meadow.simulate(
        task,
        training=meadow.Training(epochs=2, batch_size=4),
        privacy=meadow.Privacy(
            differential_privacy=meadow.DifferentialPrivacy(
                enabled=True, noise_multiplier=2.0, sampling="fixed"
            )
        ),
        out=tmp_path / "run",
        **SMALL,
    )
    assert (run.config.training.epochs, run.config.training.batch_size) == (2, 4)
    assert run.config.privacy.differential_privacy.noise_multiplier == 2.0
    assert run.summary["privacy"]["epsilon"] > 0


def test_an_interrupt_keeps_what_was_committed(task: meadow.Task, tmp_path: Path) -> None:
    """Ctrl-C ends the run after the round under way; resumed, it ends as one undisturbed."""

    def interrupt(kind: str, detail: Mapping[str, Any]) -> None:
        if kind == "round_committed" and detail["round"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    small = {**SMALL, "rounds": 3}
    stopped = meadow.simulate(task, out=tmp_path / "a", on_event=interrupt, **small)
    assert stopped.status == "stopped" and len(stopped.metrics) < 3
    resumed = meadow.resume(stopped)
    assert resumed.status == "finished"
    assert_same(resumed, meadow.simulate(task, out=tmp_path / "b", **small))


def test_what_cannot_be_resumed(task: meadow.Task, app: Path, tmp_path: Path) -> None:
    """A task of Python's needs it again, a folder's app refuses another, and names are compared."""
    made = meadow.simulate(task, out=tmp_path / "a", **SMALL)
    with pytest.raises(ConfigError, match="task was made in Python"):
        meadow.resume(tmp_path / "a")
    with pytest.raises(ConfigError, match="was changed since"):
        meadow.resume(made, strategy=replace(meadow.fedavg(), name="another"))
    meadow.simulate(app, out=tmp_path / "b", **SMALL)
    with pytest.raises(ConfigError, match="with a task: its app is"):
        meadow.resume(tmp_path / "b", task=task)
    assert meadow.resume(tmp_path / "b").status == "finished"


def test_a_failed_run_raises(task: meadow.Task, tmp_path: Path) -> None:
    """With its cause and, where it can go on, how."""

    def broken(site: meadow.Site) -> meadow.ClientData:
        raise ValueError("no such file")

    with pytest.raises(RunError, match="no such file"):
        meadow.simulate(replace(task, client_data=broken), out=tmp_path / "run", **SMALL)
    assert meadow.load_run(tmp_path / "run").status == "failed"


def test_a_sweep_compares_its_runs(task: meadow.Task, tmp_path: Path) -> None:
    """Every combination in order; the settings that differ are columns."""
    runs = meadow.sweep(
        task, {"training.learning_rate": [0.01, 0.5]}, out=tmp_path, **{**SMALL, "rounds": 1}
    )
    assert [run.config.training.learning_rate for run in runs] == [0.01, 0.5]
    with pytest.raises(ConfigError, match="needs a grid"):
        meadow.sweep(task, {}, **SMALL)


def test_progress(task: meadow.Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for, every round is a line; not asked for, and not on a terminal, there is nothing."""
    meadow.simulate(task, out=tmp_path / "a", **SMALL)
    assert capsys.readouterr().out == ""
    meadow.simulate(task, out=tmp_path / "b", progress=True, **SMALL)
    assert "round 2/2" in capsys.readouterr().out
