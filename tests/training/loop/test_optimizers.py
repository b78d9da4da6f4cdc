"""The local optimizers against torch's own, for one client and for many at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meadow.errors import DataError, ProtocolError
from meadow.training.loop.optimizers import LocalOptimizer, descend, local_optimizer, new_slots
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


@pytest.mark.parametrize("kind", ["momentum", "adam", "adam decayed", "adamw"])
@pytest.mark.parametrize("apart", ["transposed", "bfloat16"])
def test_steps_do_not_depend_on_how_they_are_computed(kind: str, apart: str) -> None:
    """One kernel walks over memory; what lies there in another order, or in another dtype than all
    the rest, takes the steps one operation after another."""
    settings = settings_of(kind)
    torch.manual_seed(3)
    params, other = torch.randn(6, 5), torch.randn(4)
    lying = other.to(torch.bfloat16) if apart == "bfloat16" else torch.randn(5, 4).T
    together, alone = [params, other], [params.clone(), lying.clone()]
    slots = new_slots(together, settings), new_slots(alone, settings)
    for step in (1, 2, 3):
        gradient = torch.randn(6, 5)
        others = torch.randn(4), torch.randn(lying.shape).to(lying.dtype)
        for given, found, own in zip((together, alone), slots, others, strict=True):
            descend(given, [gradient.clone(), own.clone()], found, settings, step=step)
    torch.testing.assert_close(together[0], alone[0], rtol=1e-6, atol=1e-7)


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


def settings_of_torch(name: str, **more: Any) -> TrainingSettings:
    record = {"optimizer": f"torch.optim:{name}", "learning-rate": 0.05, **more}
    return TrainingSettings.of(record)


@pytest.mark.parametrize("name", ["NAdam", "RMSprop", "Rprop", "Adamax"])
def test_any_optimizer_of_torch(name: str) -> None:
    """By its class, with the learning rate of the round and the rest as torch has it."""
    ours, theirs = start(), start()
    optimizer = local_optimizer(ours, settings_of_torch(name))
    expected = getattr(torch.optim, name)(theirs, lr=0.05)
    for _ in range(4):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape)
            other.grad = mine.grad.clone()
        optimizer.step()
        expected.step()
        optimizer.zero_grad()
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other) and mine.grad is None
    assert optimizer.steps == 4


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("Nothing", {}, "torch.optim has no 'Nothing'"),
        ("Optimizer", {}, "torch.optim:Optimizer"),
        ("Rprop", {"weight-decay": 0.1}, "weight_decay"),
        ("LBFGS", {}, "needs more than gradients: .*closure"),
    ],
)
def test_optimizers_that_cannot_be(name: str, more: dict[str, Any], says: str) -> None:
    """Each with its name and the reason."""
    params = start()
    for param in params:
        param.grad = torch.ones_like(param)
    with pytest.raises(DataError, match=says):
        local_optimizer(params, settings_of_torch(name, **more)).step()


def test_a_peer_names_nothing_but_optimizers() -> None:
    """Nothing is imported for a name in an instruction."""
    for text in ("os:system", "torch.optim:lr_scheduler.StepLR", "torch.hub:Load", "NAdam"):
        with pytest.raises(ProtocolError, match=r"optimizer must be one of .* torch.optim:NAdam"):
            TrainingSettings.of({"optimizer": text})


def test_torchs_optimizers_are_for_one_client() -> None:
    """Where many are trained at once, or by DP-SGD, it is refused and not taken for another."""
    with pytest.raises(DataError, match="for the params of one client"):
        new_slots(start(), settings_of_torch("NAdam"))
