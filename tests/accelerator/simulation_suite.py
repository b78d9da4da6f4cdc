"""Every algorithm on every executor, on an accelerator: the model is that of the CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from meadow.simulations.run import simulate
from meadow.strategies.algorithms.catalogue import CATALOGUE

DEVICE = "strict:1"
TRAINING = [
    name for name, entry in CATALOGUE.items() if entry.together and entry.optimizer != "none"
]
APPS = Path(__file__).parents[1] / "simulations" / "apps"
TREES = ("app.task=task:trees", "strategy.tree_depth=3")
OTHERS = {
    "analytics": ("app.task=task:counted", 'strategy.columns=["age=0:100","lab=-4:4"]'),
    "newton": ("app.task=task:logistic",),
    "xgb_bagging": TREES,
    "lora": (),
}
TASK = """
from collections import OrderedDict
import meadow, torch
from torch import nn

def load(site):
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(20 + 3 * site.index, 1, 5, 5, generator=generator)
    inputs[:, 0, 0, site.index] += 1
    targets = inputs[:, 0, 0, :3].argmax(1)
    return meadow.ClientData(train=(inputs, targets), test=(inputs[:5], targets[:5]))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3)
        self.out = nn.Linear(27, 3)

    def forward(self, inputs):
        return self.out(torch.tanh(self.norm(self.conv(inputs))).flatten(1))

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")

def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float()

task = meadow.Task(model=Net, loss=loss, client_data=load, metrics={"accuracy": accuracy})
def mlp():
    layers = {"flat": nn.Flatten(), "first": nn.Linear(25, 8), "tanh": nn.Tanh()}
    return nn.Sequential(OrderedDict(layers, out=nn.Linear(8, 3)))

plain = meadow.Task(model=mlp, loss=loss, client_data=load)
dropping = meadow.Task(
    model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(25, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
    loss=loss, client_data=load,
)
"""
SETTINGS = """
[run]
rounds = 2
cohort = 3
min_clients = 3
seed = 5
[training]
batch_size = 10
learning_rate = 0.05
[simulation]
clients = 4
"""
Params = dict[str, NDArray[Any]]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "task.py").write_text(TASK)
    (folder / "meadow.toml").write_text(SETTINGS)
    return folder


def run(
    app: Path, out: Path, monkeypatch: pytest.MonkeyPatch, device: str, executor: str, *said: str
) -> tuple[Params, list[dict[str, Any]], list[str]]:
    """Simulate on a device; returns the model, the rounds, and why clients ran one by one."""
    reasons: list[str] = []

    def hear(kind: str, detail: Any) -> None:
        if "reason" in detail:
            reasons.append(f"{kind}: {detail['reason']}")

    monkeypatch.setenv("MEADOW_DEVICE", device)
    out = out / f"{device}-{executor}".replace(":", "-")
    summary = simulate(app, overrides=said, executor=executor, out=out, on_event=hear)
    assert summary["status"] == "finished", summary
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(row["failures"] == 0 for row in rows), rows
    return load_file(out / "model.safetensors"), rows, reasons


def assert_close(one: Params, other: Params, *, rtol: float = 1e-4, atol: float = 2e-5) -> None:
    assert one.keys() == other.keys()
    for name, values in other.items():
        np.testing.assert_allclose(one[name], values, rtol=rtol, atol=atol, err_msg=name)


def chosen(name: str) -> Iterator[str]:
    """Yield the settings that choose an algorithm."""
    entry = CATALOGUE[name]
    yield f"strategy.name={name}"
    for argument, value in entry.example.items():
        yield f"strategy.{entry.arguments[argument]}={json.dumps(value)}"
    if name == "fedlion":
        yield "training.learning_rate=0.01"


@pytest.mark.parametrize("name", TRAINING)
def test_every_algorithm(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Client by client and in one tensor, the model is the CPU's; what is kept stays in place."""
    said = *chosen(name), *(() if name == "fedbn" else ("app.task=task:plain",))
    expected, rows, _ = run(app, tmp_path, monkeypatch, "cpu", "sequential", *said)
    ours, told, _ = run(app, tmp_path, monkeypatch, DEVICE, "sequential", *said)
    assert_close(ours, expected)
    assert told[-1]["train"]["loss"] == pytest.approx(rows[-1]["train"]["loss"], rel=1e-4)
    _, _, reasons = run(app, tmp_path / "cpu", monkeypatch, "cpu", "vectorized", *said)
    stacked, _, said_of_it = run(app, tmp_path, monkeypatch, DEVICE, "vectorized", *said)
    loose = {"rtol": 1e-3, "atol": 0.05} if name == "fedlion" else {}  # it takes steps of signs
    assert_close(stacked, expected, **loose)
    assert said_of_it == reasons, "it was trained one by one on the accelerator alone"


@pytest.mark.parametrize(
    ("executor", "said"),
    [
        ("sequential", ()),
        ("vectorized", ()),
        ("vectorized", ("training.optimizer=adam", "training.learning_rate=0.01")),
        ("vectorized", ("training.momentum=0.9",)),
        ("processes", ("simulation.executor=processes", "simulation.workers=1")),
        ("auto", ()),
    ],
)
def test_every_executor(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str, said: Any
) -> None:
    """The model is the CPU's, norms' buffers and all."""
    settings = [each for each in said if "simulation." not in each]
    expected, _, _ = run(app, tmp_path / "cpu", monkeypatch, "cpu", "sequential", *settings)
    ours, rows, _ = run(app, tmp_path, monkeypatch, DEVICE, executor, *said)
    assert_close(ours, expected, rtol=1e-3, atol=1e-3 if "adam" in str(said) else 1e-4)
    assert rows[-1]["evaluate"]["accuracy"] >= 0


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_random_numbers_repeat_themselves(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    """Dropout on the device depends on the seed alone."""
    made = [
        run(app, tmp_path / each, monkeypatch, DEVICE, executor, "app.task=task:dropping")[0]
        for each in ("one", "other")
    ]
    assert_close(*made, rtol=0, atol=0)


@pytest.mark.parametrize("name", OTHERS)
def test_other_work(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Statistics, Newton steps, trees and adapters are those of the CPU."""
    for needed in {"xgb_bagging": ["xgboost"], "lora": ["peft"]}.get(name, []):
        pytest.importorskip(needed)
    (app / "task.py").write_text(
        (APPS / f"{'lora' if name == 'lora' else 'other_work'}.py").read_text()
    )
    said = (f"strategy.name={name}", *OTHERS[name])
    expected, _, _ = run(app, tmp_path, monkeypatch, "cpu", "sequential", *said)
    ours, _, _ = run(app, tmp_path, monkeypatch, DEVICE, "sequential", *said)
    assert_close(ours, expected)


def test_records_in_one_tensor(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-SGD, client by client and in one tensor, ends with finite params on the device."""
    said = (
        "app.task=task:plain",
        "privacy.differential_privacy.enabled=true",
        "privacy.differential_privacy.unit=record",
        "privacy.differential_privacy.clip_norm=1.0",
        "privacy.differential_privacy.delta=1e-5",
        "privacy.differential_privacy.sampling_rate=0.5",
        "privacy.differential_privacy.noise_multiplier=1.0",
    )
    for executor in ("sequential", "vectorized"):
        ours, _, reasons = run(app, tmp_path, monkeypatch, DEVICE, executor, *said)
        assert not reasons
        assert all(np.isfinite(values).all() for values in ours.values())
