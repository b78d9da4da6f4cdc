"""Simulations with example-level privacy: both engines, claims, and what leaves a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from meadow.simulations.run import simulate

from .test_private import rows_of, written

pytest.importorskip("opacus")
RECORDS = 'unit = "record"\nsampling_rate = {rate}\n{noise}\n'
FEW = ["run.cohort=4", "run.min_clients=2", "simulation.clients=5"]


def app(folder: Path, *, rate: float = 1.0, noise: str = "noise_multiplier = 1e-7") -> Path:
    """Write an app under example-level privacy."""
    return written(folder, RECORDS.format(rate=rate, noise=noise), depth="any")


def run(made: Path, out: Path, *, more: tuple[str, ...] = (), **options: Any) -> dict[str, Any]:
    """Run it with a few clients; returns the model."""
    told: list[str] = []
    options["on_event"] = lambda kind, detail: told.append(kind)
    done = simulate(made, out=out, overrides=[*FEW, *more], **options)
    assert done["status"] == "finished", done["cause"]
    assert not {"not_vectorized", "client_failed"} & {*told}
    return load_file(out / "model.safetensors")


def test_engines_train_alike(tmp_path: Path) -> None:
    """With all examples in every step and hardly any noise; and under secure sums."""
    made = app(tmp_path / "app")
    more = ("training.epochs=3", "strategy.name=fedprox", "strategy.proximal_mu=0.1")
    one = run(made, tmp_path / "one", executor="sequential", more=more)
    stacked = run(made, tmp_path / "stacked", executor="vectorized", more=more)
    secure = (*more, "run.min_clients=3", "privacy.secure_aggregation.enabled=true")
    summed = run(made, tmp_path / "summed", more=secure)
    free = run(made, tmp_path / "free", executor="vectorized", more=(*more, *BIG))
    for name, values in one.items():
        assert np.abs(values - stacked[name]).max() < 1e-5
        assert np.abs(values - summed[name]).max() < 2e-3
    assert max(np.abs(free[name] - stacked[name]).max() for name in one) > 0.01


BIG = ("privacy.differential_privacy.clip_norm=100",)
"""A clip that no gradient reaches: then it is another model."""


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_steps_noise_reaches_the_model(tmp_path: Path, executor: str) -> None:
    """Of the planned scale: the mean of four clients' noise on one step, over rate * examples."""
    counts = [5, 6, 7, 8]
    made = app(tmp_path / "app", noise="noise_multiplier = 2000.0")
    more = ("run.rounds=1", "simulation.clients=4", "training.learning_rate=0.001")
    model = run(made, tmp_path / "out", executor=executor, more=more)
    noise = np.concatenate([each.reshape(-1) for each in model.values()])
    # weighted by examples, so that each client's noise counts alike
    planned = 0.001 * 2000 * 0.2 * 4**0.5 / sum(counts)
    quiet = run(
        app(tmp_path / "quiet"), tmp_path / "still", executor=executor, more=(*more, "run.seed=3")
    )
    noise -= np.concatenate([each.reshape(-1) for each in quiet.values()])
    assert abs(noise.std() / planned - 1) < 5 / (2 * len(noise)) ** 0.5 + 0.02


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_run_keeps_its_budget_and_says_so(tmp_path: Path, executor: str) -> None:
    """epsilon of an example, round by round; no metric leaves a client but the number of examples."""
    made = app(tmp_path / "app", rate=0.2, noise="epsilon = 4.0")
    out = tmp_path / "out"
    summary = simulate(made, out=out, overrides=FEW, executor=executor)
    spent = [row["privacy"]["epsilon"] for row in rows_of(out)]
    assert 0 < spent[0] < spent[1] <= 4.0
    assert all(row["train"] == {} and row["evaluate"] == {} for row in rows_of(out))
    assert not (out / "clients.jsonl").exists()
    said = summary["privacy"]
    assert 3.9 < said["epsilon"] <= 4.0
    assert said["unit"] == "record" and said["sampling_probability"] == 0.2
    assert "Unit: one example of a client's training data" in said["claim"]
    assert "2 rounds of 5 steps of DP-SGD on the client" in said["claim"]


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("how", ["buffer", "mix", "loss"])
def test_no_engine_lets_records_meet(tmp_path: Path, executor: str, how: str) -> None:
    """A buffer that keeps what examples are, and examples that mix: the run ends without a model."""
    made = app(tmp_path / "app")
    file = made / "task.py"
    file.write_text(f"{file.read_text()}\n{MEETING}\ntask = meeting(task, {how!r})\n")
    done = simulate(made, out=tmp_path / "out", overrides=FEW, executor=executor)
    assert done["status"] == "failed"
    assert not (tmp_path / "out" / "model.safetensors").exists()


MEETING = """
import dataclasses
import torch

class Meeting(torch.nn.Module):
    def __init__(self, inner, how):
        super().__init__()
        self.inner, self.how = inner, how
        if how == "buffer":
            self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.how == "buffer":
            self.seen = 0.5 * self.seen + x.detach().mean()
            return self.inner(x)
        return self.inner(x - x.mean(0) if self.how == "mix" else x)

def across(loss):
    return lambda outputs, targets: (lambda each: each - each.mean())(loss(outputs, targets))

def meeting(task, how):
    loss = across(task.loss) if how == "loss" else task.loss
    return dataclasses.replace(task, loss=loss, model=lambda: Meeting(task.model(), how))
"""
