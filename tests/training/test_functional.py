"""Other tensors in the place of a module's own, and its own again afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from meadow.training.algorithms.objective import seen_under
from meadow.training.functional import call_with

INPUTS = torch.arange(6.0).view(2, 3) / 6


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))  # type: ignore[no-any-return]


class Assigning(nn.Module):
    """A buffer that gets a new tensor with every call."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return self.inner(x) * self.calls  # type: ignore[no-any-return]


def repeated() -> nn.Module:
    inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    return nn.Sequential(inner, nn.Tanh(), inner)


MODULES: list[Callable[[], nn.Module]] = [
    lambda: nn.Sequential(torch.jit.script(nn.Linear(3, 3)), nn.Linear(3, 3)),
    lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
    Tied,
    repeated,
    Assigning,
    lambda: nn.Sequential(nn.PReLU(), nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))),
]
NAMES = ["scripted", "plain", "tied", "repeated", "assigning", "parametrized"]


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    named = [*module.named_parameters(remove_duplicate=False)]
    return dict([*named, *module.named_buffers(remove_duplicate=False)])


@pytest.mark.parametrize("build", MODULES, ids=NAMES)
def test_a_module_computes_with_other_tensors_and_keeps_its_own(
    build: Callable[[], nn.Module],
) -> None:
    """As another module with those values would, which changes its buffers in their place."""
    module, other = build(), build()
    mine = tensors_of(module)
    values = {name: tensor.detach().clone() for name, tensor in mine.items()}
    given = {
        name: tensor.detach().clone()
        for name, tensor in [*other.named_parameters(), *other.named_buffers()]
    }
    made = call_with(module, given, INPUTS)
    expected = other(INPUTS)
    assert torch.equal(made, expected)
    assert all(torch.equal(tensors_of(other)[name], tensor) for name, tensor in given.items())
    assert all(tensors_of(module)[name] is tensor for name, tensor in mine.items())
    assert all(torch.equal(values[name], tensor) for name, tensor in mine.items())


@pytest.mark.parametrize("build", MODULES, ids=NAMES)
def test_an_exception_leaves_it_as_it_was(build: Callable[[], nn.Module]) -> None:
    module = build()
    mine = tensors_of(module)
    given = {name: tensor.detach().clone() for name, tensor in mine.items()}
    with pytest.raises(RuntimeError):
        call_with(module, given, torch.ones(2, 7))
    assert all(tensors_of(module)[name] is tensor for name, tensor in mine.items())


def test_what_another_model_sees_leaves_the_module_alone() -> None:
    """As losses do that compare outputs with those of the global model."""
    module = repeated()
    mine = tensors_of(module)
    given = {name: tensor.detach() + 1 for name, tensor in mine.items()}
    seen_under(module, given, INPUTS, ())
    assert all(tensors_of(module)[name] is tensor for name, tensor in mine.items())


def test_any_of_a_tied_params_names_will_do() -> None:
    module = Tied()
    zeros = {"b.weight": torch.zeros(3, 3)}
    assert torch.equal(call_with(module, zeros, INPUTS), module.b.bias.expand(2, 3))


def test_what_is_not_given_is_its_own() -> None:
    module = nn.Linear(3, 3)
    made = call_with(module, {"bias": torch.zeros(3)}, INPUTS)
    assert torch.equal(made, INPUTS @ module.weight.T)
