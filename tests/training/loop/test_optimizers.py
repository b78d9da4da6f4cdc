"""The local optimizers against torch's own, for one client and for many at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meadow.training.loop.optimizers import LocalOptimizer, descend, new_slots
from meadow.training.settings import TrainingSettings

SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "decayed": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "adam": {"optimizer": "adam"},
    "adam decayed": {"optimizer": "adam", "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "beta_2": 0.99},
}
SHAPES = ((3, 4), (5,), ())


def settings_of(kind: str) -> TrainingSettings:
    return TrainingSettings(learning_rate=0.05, **SETTINGS[kind])


def torchs(params: list[torch.nn.Parameter], settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return torch's optimizer for the same settings."""
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            params,
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
    make = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return make(
        params,
        lr=settings.learning_rate,
        betas=(settings.beta_1, settings.beta_2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )


def start() -> list[torch.nn.Parameter]:
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]


@pytest.mark.parametrize("kind", SETTINGS)
def test_steps_are_those_of_torch(kind: str) -> None:
    """Six steps with the same gradients end at the same params."""
    settings, ours, theirs = settings_of(kind), start(), start()
    optimizers = LocalOptimizer(ours, settings), torchs(theirs, settings)
    for _ in range(6):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape)
            other.grad = mine.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_client_axis_changes_nothing(kind: str) -> None:
    """Four clients' tensors in one step give what each gives alone."""
    settings = settings_of(kind)
    torch.manual_seed(2)
    stacked = [torch.randn(4, *shape) for shape in SHAPES]
    alone = [[tensor[client].clone() for tensor in stacked] for client in range(4)]
    slots = new_slots(stacked, settings)
    own_slots = [new_slots(params, settings) for params in alone]
    for step in (1, 2, 3):
        gradients = [torch.randn(tensor.shape) for tensor in stacked]
        for client, params in enumerate(alone):
            own = [gradient[client].clone() for gradient in gradients]
            descend(params, own, own_slots[client], settings, step=step)
        descend(stacked, gradients, slots, settings, step=step)
    for client, params in enumerate(alone):
        for tensor, own_tensor in zip(stacked, params, strict=True):
            torch.testing.assert_close(tensor[client], own_tensor, rtol=1e-6, atol=1e-7)


def test_params_without_a_gradient_stay() -> None:
    """A param that a step did not use is not decayed either."""
    settings = settings_of("momentum")
    params = start()
    before = params[1].detach().clone()
    optimizer = LocalOptimizer(params, settings)
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    assert torch.equal(params[1], before)
