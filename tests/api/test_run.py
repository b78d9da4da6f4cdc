"""Run folders as Python sees them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import meadow
from meadow.errors import ConfigError, StoreError


@pytest.fixture
def run(task: meadow.Task, tmp_path: Path) -> meadow.Run:
    """A finished run of two rounds and three clients."""
    return meadow.simulate(
        task, clients=3, rounds=2, executor="sequential", seed=5, out=tmp_path / "run"
    )


def test_tables(run: meadow.Run) -> None:
    """A row a round, and a row for each round and client."""
    assert list(run.metrics["round"]) == [1, 2]
    assert {"train.loss", "server.accuracy", "clients", "duration_s"} <= set(run.metrics.columns)
    assert list(run.clients["round"]) == [1, 1, 1, 2, 2, 2]
    assert {"client", "examples", "train.loss", "evaluate.accuracy"} <= set(run.clients.columns)
    mean = run.clients[run.clients["round"] == 2]["train.loss"].mean()
    assert mean == pytest.approx(run.metrics["train.loss"][1], rel=1e-9)


def test_without_pandas_they_are_rows(run: meadow.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as lists of dicts."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert [row["round"] for row in run.metrics] == [1, 2]
    assert len(run.clients) == 6 and run.clients[0]["client"] == 1


def test_a_curve_is_a_metric_of_each_round_that_measured_it(
    task: meadow.Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers, with pandas or without; a metric that is not there is named."""
    settings = {"evaluation.every": 2}
    out = tmp_path / "run"
    run = meadow.simulate(task, clients=3, rounds=4, settings=settings, out=out)
    curves = {name: run.curve(name) for name in ("train.loss", "server.accuracy")}
    assert [len(curve) for curve in curves.values()] == [4, 2]
    assert curves["server.accuracy"] == list(run.metrics["server.accuracy"].dropna())
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert run.curve("train.loss") == curves["train.loss"]
    with pytest.raises(ConfigError, match=r"no round has a metric 'accuracy'.*server\.accuracy"):
        run.curve("accuracy")


def test_the_model(run: meadow.Run, task: meadow.Task) -> None:
    """The task's module with the run's params."""
    module = meadow.load_run(run.folder, task=task).model()
    for name, tensor in module.state_dict().items():
        assert tensor.numpy().tobytes() == run.params()[name].tobytes()
    with pytest.raises(ConfigError, match=r"use run.model\(task\)"):
        meadow.load_run(run.folder).model()
    (run.folder / "model.safetensors").unlink()
    with pytest.raises(StoreError, match="cannot be opened"):
        run.params()


def test_plots_and_reports(run: meadow.Run, task: meadow.Task, tmp_path: Path) -> None:
    """Curves of one run and of two; a metric that is not there is named."""
    assert [
        axes.get_title(loc="left") or axes.get_title()
        for axes in run.plot(["server.accuracy"]).axes
    ] == ["server accuracy"]
    other = meadow.simulate(task, clients=3, rounds=1, out=tmp_path / "other")
    both = meadow.compare([run, other.folder])
    assert len(both) == 2 and len(both.plot(["train.loss"]).axes[0].lines) == 2
    assert list(both.summary["run.rounds"]) == ["2", "1"]
    with pytest.raises(ConfigError, match=r"no metric 'train.nonsense'; there are train.loss"):
        run.plot(["train.nonsense"])
    assert run.report().is_file() and both.report(tmp_path / "both.html").is_file()
    with pytest.raises(ConfigError, match="no run to compare"):
        meadow.compare([])


def test_how_it_is_shown(run: meadow.Run) -> None:
    """One line in a terminal; a chart and a table in a notebook, every name escaped."""
    assert repr(run).startswith(f"<Run {run.folder} finished: 2 rounds, train")
    page = run._repr_html_()
    assert "<svg" in page and "<table" in page and "<script" not in page
    file = run.folder / "metrics.jsonl"
    file.write_text(file.read_text().replace('"accuracy"', '"<script>"'))
    assert "<script" not in run._repr_html_()


def test_what_is_no_run(tmp_path: Path) -> None:
    """A folder without a run's files is refused."""
    with pytest.raises(ConfigError, match="there is no such folder"):
        meadow.load_run(tmp_path / "nothing")


def test_an_algorithm_of_this_process_is_named(
    run: meadow.Run, task: meadow.Task, tmp_path: Path
) -> None:
    """The run folder does not say that it was FedAvg: it has the builder and its arguments."""

    class Half(meadow.LocalAlgorithm):
        def corrected(self, gradient, param, start, own, shared):  # type: ignore[no-untyped-def]
            return gradient

    @meadow.builder
    def mine(*, rate: float = 1.0) -> meadow.Algorithm:
        return meadow.averaging("mine", client=Half())

    other = meadow.simulate(
        task, strategy=mine(rate=0.5), clients=3, rounds=1, out=tmp_path / "own", progress=False
    )
    assert (other.folder / "meadow.toml").read_text().count(":mine") == 1
    rows = meadow.compare([run, other]).summary
    assert list(rows["strategy.name"]) == ["fedavg", f"{__name__}:mine"]
    assert list(rows["strategy.rate"])[1] == "0.5"
