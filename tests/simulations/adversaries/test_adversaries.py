"""Adversaries in a simulation: whose replies change, whose data, and that robust rules resist."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import meadow
from meadow.config.load import make_config
from meadow.config.sections.simulation import AdversariesConfig
from meadow.errors import ConfigError, DataError
from meadow.simulations.adversaries.attacks import ATTACKS
from meadow.simulations.adversaries.poison import POISONS, attacked, with_trigger
from meadow.simulations.run import simulate
from meadow.task import Site

TASK = """
import meadow, torch
from torch import nn

def samples(seed, count):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long()

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

task = meadow.Task(
    model=model,
    loss=lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"),
    metrics={"accuracy": lambda o, t: (o.argmax(dim=1) == t).float()},
    client_data=lambda site: meadow.ClientData(train=samples(site.index, 40)),
    server_data=lambda: samples(99, 200),
)
"""
CONFIG = """
[run]
rounds = 3
seed = 3
min_clients = 7
[training]
batch_size = 10
learning_rate = 0.2
[simulation]
clients = 9
"""
ROBUST = [
    "robust.aggregation=trimmed_mean",
    "robust.byzantine=2",
    'robust.preaggregation=["adaptive_clip", "nnm"]',
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Simulate the small app under some settings; returns the final accuracy and the model."""
    folder = tmp_path_factory.mktemp("apps") / "small_app"
    folder.mkdir()
    (folder / "task.py").write_text(TASK)
    (folder / "meadow.toml").write_text(CONFIG)

    @cache
    def simulated(*overrides: str, executor: str = "vectorized") -> tuple[float, bytes]:
        out = tmp_path_factory.mktemp("runs") / "run"
        summary = simulate(folder, overrides=overrides, out=out, executor=executor)
        assert summary["status"] == "finished", summary["cause"]
        rows = (out / "metrics.jsonl").read_text().splitlines()
        assert {json.loads(row)["clients"] for row in rows} == {9}
        return summary["final"]["server"]["accuracy"], (out / "model.safetensors").read_bytes()

    return simulated


def adversaries(kind: str) -> list[str]:
    """Return the settings of two adversaries."""
    said = [f"simulation.adversaries.kind={kind}", "simulation.adversaries.count=2"]
    return [*said, "simulation.adversaries.classes=2"] if kind == "label_flip" else said


@pytest.mark.parametrize("kind", [*ATTACKS, *POISONS])
def test_robust_rules_resist_every_attack(run, kind):
    """Clipping, NNM and the trimmed mean learn in spite of two of nine clients, whatever they do."""
    accuracy, model = run(*adversaries(kind), *ROBUST)
    assert accuracy > 0.85
    assert model != run(*ROBUST)[1]


@pytest.mark.parametrize(("kind", "strength"), [("gaussian", 5), ("sign_flip", None), ("alie", 10)])
def test_the_mean_does_not(run, kind, strength):
    """The mean learns less than a robust rule: the attack is one."""
    attack = adversaries(kind)
    if strength is not None:
        attack.append(f"simulation.adversaries.strength={strength}")
    assert run(*attack)[0] < run(*attack, *ROBUST)[0] - 0.05


@pytest.mark.parametrize("kind", ["alie", "gaussian", "label_flip"])
def test_adversaries_are_the_same_on_every_executor(run, kind):
    """One after another or in one tensor, the model is the same within rounding; and it repeats."""
    one = run(*adversaries(kind), *ROBUST, executor="sequential")
    assert one == run(*ROBUST, *adversaries(kind), executor="sequential")
    assert run(*adversaries(kind), *ROBUST)[0] == pytest.approx(one[0], abs=0.05)


def pair(images: torch.Tensor, labels: torch.Tensor) -> Any:
    return images, labels


def rows_of_a_data_set(images: torch.Tensor, labels: torch.Tensor) -> Any:
    """Return the same samples as the middle of a data set that clients share."""
    whole = TensorDataset(images.repeat(3, 1, 1, 1), torch.cat([labels + 1, labels, labels + 2]))
    return Subset(whole, range(6, 12))


def site_data(kind: str, index: int, form: Callable[..., Any] = pair) -> Any:
    """Return the training data of one of four sites, the last of which is poisoned."""
    images, labels = torch.rand(6, 1, 8, 8), torch.arange(6)
    task = meadow.Task(
        model=torch.nn.Identity,
        loss=lambda outputs, targets: outputs,
        client_data=lambda site: meadow.ClientData(train=form(images, labels)),
    )
    data = attacked(task, AdversariesConfig(kind=kind, count=1, target=7))
    return data.client_data(Site(index=index, count=4)).train


def test_data_are_the_honest_clients_alone():
    """The set is divided among the honest sites; an adversary has a copy of one's share."""
    seen = []

    def client_data(site: Site) -> meadow.ClientData:
        seen.append((site.index, site.count))
        return meadow.ClientData(train=(torch.zeros(1), torch.zeros(1)))

    task = meadow.Task(model=torch.nn.Identity, loss=lambda o, t: o, client_data=client_data)
    divided = attacked(task, AdversariesConfig(kind="alie", count=2))
    for index in range(5):
        divided.client_data(Site(index=index, count=5))
    assert seen == [(0, 3), (1, 3), (2, 3), (0, 3), (1, 3)]


@pytest.mark.parametrize("form", [pair, rows_of_a_data_set])
def test_label_flip_turns_labels_round(form):
    """The last site's labels are 9 - y, in whichever form it holds them; the others' are theirs."""
    assert site_data("label_flip", 3, form)[1].tolist() == [9, 8, 7, 6, 5, 4]
    assert site_data("label_flip", 2)[1].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("form", [pair, rows_of_a_data_set])
def test_a_backdoor_is_a_patch_and_its_target(form):
    """Every second image of the adversary has the trigger and the target; nobody else's has."""
    inputs, labels = site_data("backdoor", 3, form)
    assert labels.tolist() == [0, 7, 2, 7, 4, 7]
    patched = [bool((image[..., -3:, -3:] == inputs.max()).all()) for image in inputs]
    assert patched == [False, True, False, True, False, True]
    assert site_data("backdoor", 0)[1].tolist() == [0, 1, 2, 3, 4, 5]
    rows = torch.rand(2, 5)
    assert with_trigger(rows)[:, :2].tolist() == rows[:, :2].tolist()


def test_a_loader_is_not_poisoned():
    """A DataLoader makes its own batches: it is refused with what to give instead."""

    def loader(images: torch.Tensor, labels: torch.Tensor) -> Any:
        return DataLoader(TensorDataset(images, labels))

    with pytest.raises(DataError, match="give its Dataset"):
        site_data("label_flip", 3, loader)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"simulation": {"clients": 3, "adversaries": {"count": 3}}}, "somebody has to be honest"),
        (
            {"simulation": {"adversaries": {"kind": "mimic", "strength": 2.0}}},
            "is only for when simulation.adversaries.kind",
        ),
        (
            {
                "run": {"min_clients": 5},
                "simulation": {"clients": 5, "adversaries": {}},
                "privacy": {"secure_aggregation": {"enabled": True}},
            },
            "secure aggregation hides",
        ),
        ({"robust": {"byzantine": 1}}, "run.min_clients = 2 must be >= 3 for trimmed_mean"),
        (
            {
                "run": {"min_clients": 5},
                "simulation": {"clients": 5},
                "robust": {},
                "privacy": {"secure_aggregation": {"enabled": True}},
            },
            "needs every single one",
        ),
        ({"robust": {"preaggregation": ["clip"]}}, "robust cannot be: clip_norm must be set"),
    ],
)
def test_what_cannot_be_is_refused(values, text):
    """Impossible combinations are refused when the configuration is read."""
    with pytest.raises(ConfigError, match=text):
        make_config(values)
    assert make_config({"run": {"min_clients": 3}, "robust": {}}).robust is not None
