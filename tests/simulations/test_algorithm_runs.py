"""Whole runs of algorithms that keep something: interrupted, resumed, and in secure sums."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from meadow.simulations.run import resume, simulate

TASK = """
import meadow, torch
from torch import nn

def load(site):
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(40, 6, generator=generator)
    inputs[:, site.index] += 2
    targets = inputs.argmax(1) % 3
    return meadow.ClientData(train=(inputs[:30], targets[:30]), test=(inputs[30:], targets[30:]))

task = meadow.Task(
    model=lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    loss=lambda out, want: nn.functional.cross_entropy(out, want, reduction="none"),
    client_data=load,
)
"""
SETTINGS = """
[run]
rounds = 3
cohort = 3
min_clients = 3
[training]
batch_size = 10
learning_rate = 0.1
[simulation]
clients = 6
"""
RUNS = {
    "scaffold": ("strategy.name=scaffold", "vectorized"),
    "ditto": ("strategy.name=ditto", "sequential"),
    "ifca": ("strategy.name=ifca", "sequential"),
    "utility": ("selection.kind=utility", "vectorized"),
}


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app whose clients see different inputs."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "task.py").write_text(TASK)
    (folder / "meadow.toml").write_text(SETTINGS)
    return folder


class KilledHereError(BaseException):
    """Stands for a process that is killed."""


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_run_goes_on_bit_by_bit(app: Path, tmp_path: Path, name: str) -> None:
    """What the server and the clients keep is that of the last durable round: nothing is lost, and
    nothing counts twice."""
    setting, executor = RUNS[name]
    simulate(app, overrides=[setting], executor=executor, out=tmp_path / "whole")

    def kill(event: str, detail: Mapping[str, Any]) -> None:
        if event == "round_started" and detail["round"] == 3:
            raise KilledHereError

    out = tmp_path / "killed"
    with pytest.raises(KilledHereError):
        simulate(app, overrides=[setting], executor=executor, out=out, on_event=kill)
    assert resume(out)["status"] == "finished"
    for file in ("model.safetensors", "clients.jsonl"):
        assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_secure_sums_give_the_same_model(app: Path, tmp_path: Path) -> None:
    """Companions are summed under masks like params, within the steps of fixed-point numbers."""
    models = {}
    for secure in ("false", "true"):
        settings = ["strategy.name=scaffold", f"privacy.secure_aggregation.enabled={secure}"]
        out = tmp_path / secure
        simulate(app, overrides=settings, executor="sequential", out=out)
        models[secure] = load_file(out / "model.safetensors")
    for tensor, values in models["false"].items():
        np.testing.assert_allclose(models["true"][tensor], values, rtol=0, atol=2e-3)


def test_personal_metrics_are_in_the_rows(app: Path, tmp_path: Path) -> None:
    """metrics.jsonl has the common params' loss and the clients', of every client too."""
    out = tmp_path / "out"
    simulate(app, overrides=["strategy.name=ditto"], executor="sequential", out=out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all({"loss", "personal-loss"} <= row["evaluate"].keys() for row in rows)
    tables = [json.loads(line) for line in (out / "clients.jsonl").read_text().splitlines()]
    assert all(len(table["evaluate"]["personal-loss"]) == 3 for table in tables)
