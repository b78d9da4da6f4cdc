"""Large linear layers that keep no weight per client, in networks of any other layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import MessageType
from torch import nn
from torch.nn import functional

import meadow
from meadow.simulations.executors.vectorized import stacked_module
from meadow.simulations.executors.vectorized.stacked_module import StackedModule

from ..test_agreement import (
    CLIENTS,
    INPUTS,
    SIZES,
    TARGETS,
    assert_alike,
    assert_is_mean,
    executors,
    load,
    order_of,
    train,
)

WIDTH = 512


class Large(nn.Module):
    """A convolution, a large linear layer, a small one."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 36, 3, padding=1)
        self.large = nn.Linear(576, WIDTH, bias=bias)
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.large(torch.relu(self.first(x)).flatten(1))))


class Twice(Large):
    """Calls its large layer for two views of a sample."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.relu(self.first(x)).flatten(1)
        return self.last(torch.relu(self.large(seen) + self.large(seen * 0.5)))


class Read(Large):
    """Uses the weight of its large layer besides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.relu(self.first(x)).flatten(1)
        return self.last(torch.relu(self.large(seen) + functional.linear(seen, self.large.weight)))


class Tied(Large):
    """Has another layer with the weight of the large one."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(576, WIDTH)
        self.other.weight = self.large.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.relu(self.first(x)).flatten(1)
        return self.last(torch.relu(self.large(seen) + self.other(seen)))


class Rows(Large):
    """Calls its large layer with several rows a sample."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.relu(self.first(x)).flatten(1)
        seen = torch.stack([seen, seen * 0.5], 1)
        return self.last(torch.relu(self.large(seen)).sum(1))


class Idle(Large):
    """Does not use its large layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)).flatten(1)[:, :WIDTH])


class Frozen(Large):
    """Does not train its large layer."""

    def __init__(self) -> None:
        super().__init__()
        self.large.requires_grad_(False)


class FrozenWeight(Large):
    """Trains the bias of its large layer alone."""

    def __init__(self) -> None:
        super().__init__()
        self.large.weight.requires_grad_(False)


class Derived(Large):
    """Has a linear layer of its own kind."""

    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 0.9

    def __init__(self) -> None:
        super().__init__()
        self.large = self.Scaled(576, WIDTH)


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 36, 3, padding=1), nn.GroupNorm(6, 36), nn.ReLU(), nn.Flatten(),
        nn.Linear(576, WIDTH, bias=False), nn.LayerNorm(WIDTH), nn.GELU(), nn.Linear(WIDTH, 4),
    )  # fmt: skip


def hooked() -> nn.Module:
    made = Large()
    made.large.register_forward_hook(lambda layer, given, outputs: outputs * 2)
    return made


SGD = {"learning-rate": 0.05}
SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": SGD,
    "two epochs": {**SGD, "epochs": 2},
    "momentum": {**SGD, "momentum": 0.9, "epochs": 2},
    "all": {**SGD, "momentum": 0.5, "weight-decay": 0.1, "proximal-mu": 0.3, "epochs": 2},
}
Made = Callable[[], nn.Module]


def task_of(model: Made) -> meadow.Task:
    return meadow.Task(
        model=model,
        loss=lambda out, want: functional.cross_entropy(out, want, reduction="none"),
        client_data=lambda site: load(site, "tensors"),
    )


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The layers that kept no weight per client, by place."""
    found: list[str] = []
    keeping = StackedModule.keeping_low_rank

    def noting(self: StackedModule, rows: int) -> StackedModule:
        made = keeping(self, rows)
        found.extend(made.low_rank)
        return made

    monkeypatch.setattr(StackedModule, "keeping_low_rank", noting)
    return found


@pytest.mark.parametrize("model", [Large, normed, lambda: Large(bias=False)])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_client_trains_as_it_does_alone(
    model: Made, settings: dict[str, Any], held: list[str]
) -> None:
    """One by one and in their mean, with unequal numbers of samples, round after round."""
    task = task_of(model)
    order = order_of(task, MessageType.TRAIN, settings)
    sequential, single = executors(task, combine=False)
    _, together = executors(task, combine=True)
    expected = train(sequential, order)
    for _ in range(2):
        found = train(single, order)
        for client, reply in expected.items():
            assert_alike(found[client], reply)
    (mean,) = train(together, order).values()
    assert_is_mean(mean, expected)
    assert len(set(held)) == 1


@pytest.mark.parametrize(
    "model", [Twice, Read, Tied, Rows, Idle, Frozen, FrozenWeight, Derived, hooked]
)
def test_what_is_not_one_call_keeps_its_weights(model: Made, held: list[str]) -> None:
    """And is still right."""
    task = task_of(model)
    order = order_of(task, MessageType.TRAIN, SETTINGS["all"])
    sequential, vectorized = executors(task, combine=False)
    expected, found = train(sequential, order), train(vectorized, order)
    for client, reply in expected.items():
        assert_alike(found[client], reply)
    assert not held


@pytest.mark.parametrize(
    "settings", [{"optimizer": "adam"}, {"gradient-clip-norm": 1.0}, {"precision": "bf16"}]
)
def test_steps_that_are_not_linear_keep_the_weights(
    settings: dict[str, Any], held: list[str]
) -> None:
    """An optimizer that divides by squares, or a bound on the gradient's norm, needs the gradient."""
    task = task_of(Large)
    _, vectorized = executors(task, combine=False)
    train(vectorized, order_of(task, MessageType.TRAIN, {**SGD, **settings}))
    assert not held


def test_a_client_whose_numbers_are_not_finite_spoils_nobody_elses(held: list[str]) -> None:
    """Its rows are in no one's but its own products."""
    task = task_of(Large)
    broken = meadow.Task(
        model=task.model,
        loss=task.loss,
        client_data=lambda site: meadow.ClientData(
            train=(
                rows_of(site.index) * (torch.nan if site.index == 2 else 1),
                targets_of(site.index),
            )
        ),
    )
    order = order_of(task, MessageType.TRAIN, SETTINGS["momentum"])
    _, whole = executors(task, combine=False)
    _, vectorized = executors(broken, combine=False)
    expected = train(whole, order)
    replies = {each.metadata.src_node_id: each for each in vectorized.execute(order)}
    assert [client for client, each in replies.items() if each.has_error()] == [3]
    for client, reply in expected.items():
        if client != 3:
            assert_alike(replies[client], reply)
    assert held and len(replies) == CLIENTS


def test_a_probe_that_fails_keeps_the_weights(
    held: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is mapped as it is."""

    def raising(*_: Any) -> Any:
        raise RuntimeError("not so")

    monkeypatch.setattr(stacked_module, "LowRankWeight", raising)
    task = task_of(Large)
    _, vectorized = executors(task, combine=False)
    train(vectorized, order_of(task, MessageType.TRAIN, SGD))
    assert not held


def rows_of(index: int) -> torch.Tensor:
    start = sum(SIZES[:index])
    return INPUTS[start : start + SIZES[index]]


def targets_of(index: int) -> torch.Tensor:
    start = sum(SIZES[:index])
    return TARGETS[start : start + SIZES[index]]
