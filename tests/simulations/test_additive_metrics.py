"""AUROC and the like in rounds: on every executor, in secure sums, for early stopping and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score

import meadow
from meadow.apps.folder import App
from meadow.task import Site

TASK = """
import meadow
import torch

def load(site):
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(30, 4, generator=generator) + site.index % 3 - 1
    targets = (inputs.sum(1) + torch.randn(30, generator=generator) > 0).long()
    return meadow.ClientData(train=(inputs, targets), test=(inputs[:20], targets[:20]))

class Ones(meadow.AdditiveMetric):
    "How often class 1 is predicted, by how often it is there; it looks across its batch."
    size = 2

    def statistics(self, outputs, targets):
        near = outputs - outputs.mean() + outputs.mean()
        return torch.stack([near.argmax(1) == 1, targets == 1], dim=1).float()

    def value(self, means):
        return means[0] / means[1]

def server():
    parts = [load(meadow.Site(index=i, count=6)).train for i in range(6)]
    return tuple(torch.cat(each) for each in zip(*parts))

task = meadow.Task(
    model=lambda: torch.nn.Linear(4, 2),
    loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy, "auroc": meadow.auroc(bins=32), "ones": Ones()},
    client_data=load,
    server_data=server,
)
"""
NAMES = {"loss", "accuracy", "auroc", "ones"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An app with such metrics."""
    made = tmp_path / "app"
    made.mkdir()
    (made / "task.py").write_text(TASK)
    (made / "meadow.toml").write_text("[run]\nrounds = 3\n[training]\nlearning_rate = 0.05\n")
    return made


def rows(folder: Path, out: Path, executor: str = "sequential", **said: Any) -> list[Any]:
    """Return the rounds of a run."""
    meadow.simulate(folder, clients=6, out=out, executor=executor, progress=False, **said)
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("executor", ["vectorized", "processes"])
def test_the_executors_agree(folder: Path, tmp_path: Path, executor: str) -> None:
    """In rounds, in evaluations, and by client; no mean that a metric is computed from is shown."""
    alone = rows(folder, tmp_path / "a")
    others = rows(folder, tmp_path / "b", executor)
    for one, other in zip(alone, others, strict=True):
        for part in ("train", "evaluate", "server"):
            assert set(one[part]) == set(other[part]) == NAMES
            assert other[part] == pytest.approx(one[part], abs=2e-3)
    for out in ("a", "b"):
        for line in (tmp_path / out / "clients.jsonl").read_text().splitlines():
            table = json.loads(line)
            assert set(table["train"]) == NAMES and set(table["evaluate"]) == NAMES | {"clients"}


def test_it_is_the_value_of_all_examples(folder: Path, tmp_path: Path) -> None:
    """Of the clients' test data together, and of the server's: not the mean of the clients' values."""
    found = rows(folder, tmp_path / "a")[-1]
    module = meadow.load_run(tmp_path / "a").model()
    task = App.load(folder, environ={}).load_task()
    inputs, targets = task.server_data()  # type: ignore[misc]
    assert found["server"]["auroc"] == pytest.approx(
        roc_auc_score(targets, module(inputs).softmax(1)[:, 1].detach()), abs=0.01
    )
    tests: list[Any] = [task.client_data(Site(index=i, count=6)).test for i in range(6)]
    inputs, targets = (torch.cat(each) for each in zip(*tests, strict=True))
    pooled = roc_auc_score(targets, module(inputs).softmax(1)[:, 1].detach())
    assert found["evaluate"]["auroc"] == pytest.approx(pooled, abs=0.01)


@pytest.mark.parametrize(
    "said",
    [
        {"privacy": {"secure_aggregation": {"enabled": True}}, "run": {"min_clients": 3}},
        {"settings": {"rounds.kind": "fedbuff", "rounds.buffer_size": 3}},
        {"strategy": "ditto"},
        {"settings": {"evaluation.tuning_epochs": 1}},
        {"run": {"early_stopping": {"metric": "evaluate.auroc", "mode": "max", "patience": 1}}},
    ],
)
def test_wherever_metrics_are(folder: Path, tmp_path: Path, said: dict[str, Any]) -> None:
    """In secure sums, without waiting, of clients' own params, and where they end a run."""
    found = rows(folder, tmp_path / "a", **said)[-1]
    asked = found["evaluate"] or found["train"]
    names = NAMES | {f"personal-{name}" for name in NAMES if "personal-loss" in asked}
    assert set(asked) == names
    if "privacy" in said:
        plain = rows(folder, tmp_path / "b")[-1]["evaluate"]
        assert asked["auroc"] == pytest.approx(plain["auroc"], abs=0.01)


def test_private_runs_show_none(folder: Path, tmp_path: Path) -> None:
    """As no metric of clients' data leaves them."""
    private = {"differential_privacy": {"enabled": True, "noise_multiplier": 1.0}}
    found = rows(folder, tmp_path / "a", privacy=private)[-1]
    assert not found["train"] and not found["evaluate"]
