"""Runs whose clients take no training steps: statistics, Newton steps and boosted trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from meadow.apps.folder import App
from meadow.config.load import make_config
from meadow.errors import ConfigError
from meadow.simulations.run import resume, simulate

TASK = Path(__file__).with_name("apps") / "other_work.py"
SETTINGS = """
[run]
rounds = 4
min_clients = 5
[simulation]
clients = 5
executor = "sequential"
"""
STATISTICS = (
    "app.task=task:counted",
    "strategy.name=analytics",
    'strategy.columns=["age=0:100","lab=-4:4"]',
)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app with three tasks over the same data."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "task.py").write_text(TASK.read_text())
    (folder / "meadow.toml").write_text(SETTINGS)
    return folder


def run(app: Path, out: Path, *settings: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Simulate; returns the summary and the last params."""
    summary = simulate(app, overrides=settings, out=out)
    assert summary["status"] == "finished", summary
    return summary, load_file(out / "model.safetensors")


def pooled(app: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return all clients' training data in one place."""
    code = App.load(app)
    scaled, rows_of = code.load_object("task:scaled"), code.load_object("task:rows_of")
    rows = [scaled(rows_of(index)) for index in range(5)]
    inputs, targets = zip(*rows, strict=True)
    return torch.cat(inputs).numpy(), torch.cat(targets).numpy()


def test_statistics_are_those_of_the_pooled_rows(app: Path, tmp_path: Path) -> None:
    """Counts, moments and the histogram are exact; quantiles are within their interval."""
    summary, found = run(app, tmp_path / "run", *STATISTICS, "strategy.rows_min=1")
    ages = pooled(app)[0][:, 0] * 10 + 45
    assert found["age/count"] == len(ages) == 500
    assert found["age/mean"] == pytest.approx(ages.mean(), rel=1e-12)
    assert found["age/variance"] == pytest.approx(ages.var(ddof=1), rel=1e-10)
    counts, edges = np.histogram(ages, bins=20, range=(0, 100))
    assert np.array_equal(found["age/histogram"], counts)
    assert np.allclose(found["age/edges"], edges)
    exact = np.quantile(ages, [0.25, 0.5, 0.75], method="inverted_cdf")
    assert (abs(found["age/quantiles"] - exact) <= found["age/widths"] / 2).all()
    assert found["age/widths"].max() < 0.1
    assert found["lab/count"] == 332  # every third row has no value
    assert summary["final"]["server"]["age-quantile-0.5"] == pytest.approx(exact[1], abs=0.05)


def test_small_groups_of_rows_are_not_shown(app: Path, tmp_path: Path) -> None:
    """Counts are multiples of rows_min, and a quantile's interval has so many rows at least."""
    _, found = run(app, tmp_path / "run", *STATISTICS, "strategy.rows_min=10", "run.rounds=6")
    ages = pooled(app)[0][:, 0] * 10 + 45
    for name in ("age/histogram", "lab/histogram", "lab/count"):
        assert not (found[name] % 10).any()
    for middle, width in zip(found["age/quantiles"], found["age/widths"], strict=True):
        assert (abs(ages - middle) <= width / 2).sum() >= 10
    assert not (tmp_path / "run" / "clients.jsonl").exists(), "it says how many rows each has"


def test_statistics_are_the_same_in_a_secure_sum(app: Path, tmp_path: Path) -> None:
    """Nobody sees a single client's answers, and the means agree within the sum's precision."""
    secure = "privacy.secure_aggregation.enabled=true"
    _, found = run(app, tmp_path / "run", *STATISTICS, secure, "run.rounds=2")
    ages = pooled(app)[0][:, 0] * 10 + 45
    assert found["age/count"] == 500
    assert found["age/mean"] == pytest.approx(ages.mean(), abs=0.01)


def test_newton_finds_what_pooled_data_would(app: Path, tmp_path: Path) -> None:
    """The params are the pooled Newton solution's, to rounding: its gradient vanishes."""
    settings = ("app.task=task:logistic", "strategy.name=newton", "strategy.ridge=0.01")
    _, found = run(app, tmp_path / "run", *settings, "run.rounds=7")
    inputs, targets = pooled(app)
    wide = np.hstack([inputs, np.ones((len(inputs), 1))])
    weights = np.zeros(5)
    for _ in range(20):
        chance = 1 / (1 + np.exp(-wide @ weights))
        gradient = wide.T @ (chance - targets) / len(wide) + 0.01 * weights
        curvature = (wide.T * (chance * (1 - chance))) @ wide / len(wide) + 0.01 * np.eye(5)
        weights -= np.linalg.solve(curvature, gradient)
    assert np.allclose([*found["weight"][0], *found["bias"]], weights, atol=1e-9)


@pytest.mark.parametrize("name", ["xgb_bagging", "xgb_cyclic"])
def test_trees_learn_and_go_on_after_an_interruption(app: Path, tmp_path: Path, name: str) -> None:
    """The model predicts, and that of a resumed run is the same bytes."""
    xgboost = pytest.importorskip("xgboost")
    settings = ["app.task=task:trees", f"strategy.name={name}", "strategy.tree_depth=3"]
    if name == "xgb_cyclic":
        settings += ["run.cohort=1", "run.min_clients=1", "selection.kind=cyclic"]
    summary, found = run(app, tmp_path / "run", *settings)
    assert summary["final"]["evaluate"]["accuracy"] > 0.75
    booster = xgboost.Booster()
    booster.load_model(bytearray(found["trees"].tobytes()))
    assert booster.num_boosted_rounds() == (20 if name == "xgb_bagging" else 4)
    stopped = tmp_path / "stopped"

    def interrupt(kind: str, detail: Any) -> None:
        if kind == "round_committed" and detail["round"] == 2:
            raise KeyboardInterrupt

    simulate(app, overrides=settings, out=stopped, on_event=interrupt)
    resume(stopped)
    assert np.array_equal(load_file(stopped / "model.safetensors")["trees"], found["trees"])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"strategy": {"name": "analytics"}}, r"strategy\.columns must be said"),
        ({"strategy": {"name": "xgb_cyclic"}}, r"must both be 1"),
        (
            {
                "strategy": {"name": "analytics", "columns": ["age=5:1"]},
                "run": {"min_clients": 3},
            },
            "age=0:120",
        ),
        (
            {"strategy": {"name": "analytics", "columns": ["a=0:1"]}, "run": {"min_clients": 2}},
            "must be >= 3",
        ),
        ({"strategy": {"name": "xgb_bagging"}, "robust": {}}, "is about a model's params"),
        ({"strategy": {"name": "newton", "ridge": -1.0}}, "ridge must be a number >= 0"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any], said: str) -> None:
    """A configuration that could show or learn nothing says why, before anything starts."""
    with pytest.raises(ConfigError, match=said):
        make_config(values)
