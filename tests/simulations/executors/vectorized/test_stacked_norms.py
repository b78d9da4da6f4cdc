"""Normalization of many clients at once is each client's alone within rounding: values, derivatives of both
orders, and running statistics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.func import grad, vmap
from torch.nn import functional

from meadow.simulations.executors.vectorized import stacked_norms
from meadow.simulations.executors.vectorized.stacked_layers import StackedLayers

CLIENTS, BATCH, CHANNELS = 3, 4, 6
PLACES = [(), (7,), (5, 3), (2, 3, 4)]
Norm = Callable[..., torch.Tensor]


def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> torch.Tensor:
    return functional.batch_norm(x, mean, var, weight, bias, True, 0.3, 1e-3)


def untracked(x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> torch.Tensor:
    return functional.batch_norm(x, None, None, weight, bias, training=True)


def group_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, *, groups: int) -> torch.Tensor:
    return functional.group_norm(x, groups, weight, bias, eps=1e-3)


NORMS: dict[str, Norm] = {
    "batch": batch_norm,
    "untracked": untracked,
    **{f"{groups} groups": partial(group_norm, groups=groups) for groups in (1, 2, CHANNELS)},
}


def tensors(places: tuple[int, ...]) -> list[torch.Tensor]:
    """Inputs, weights, biases, means and variances of some clients."""
    draw = torch.Generator().manual_seed(len(places))
    inputs = torch.randn(CLIENTS, BATCH, CHANNELS, *places, generator=draw) * 2 + 1
    rows = [torch.randn(CLIENTS, CHANNELS, generator=draw) for _ in range(4)]
    return [inputs, *rows[:3], rows[3].square()]


def loss_of(norm: Norm, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    made = norm(*given)
    return (made * torch.arange(made.numel()).sin().view_as(made)).square().sum(), made.detach()


def alone(of_one: Callable[..., Any], given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what each client gives, stacked; statistics are updated in place."""
    rows = [of_one(*(each[client] for each in given)) for client in range(CLIENTS)]
    return [torch.stack(each) for each in zip(*rows, strict=True)]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that ran for all clients at once."""
    names: list[str] = []
    before = stacked_norms._SideBySide.vmap.__func__  # type: ignore[attr-defined]

    def noted(cls: Any, *given: Any) -> Any:
        names.append(cls.__name__)
        return before(cls, *given)

    monkeypatch.setattr(stacked_norms._SideBySide, "vmap", classmethod(noted))
    return names


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_each_client_is_normalized_alone(
    name: str, places: tuple[int, ...], used: list[str]
) -> None:
    def of_one(*given: torch.Tensor) -> Any:
        gradients, made = grad(partial(loss_of, NORMS[name]), (0, 1, 2), has_aux=True)(*given)
        return *gradients, made

    def stacked(*given: torch.Tensor) -> Any:
        with StackedLayers():
            return of_one(*given)

    ours, theirs = tensors(places), tensors(places)
    made, wanted = vmap(stacked)(*ours), alone(of_one, theirs)
    for one, other in zip([*made, *ours], [*wanted, *theirs], strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-4)
    assert len(used) == 2  # there and back


@pytest.mark.parametrize("name", NORMS)
def test_a_loss_may_look_at_gradients(name: str, used: list[str]) -> None:
    """As a gradient penalty does: second derivatives."""

    def penalty(*given: torch.Tensor) -> torch.Tensor:
        found = grad(lambda *own: loss_of(NORMS[name], *own)[0], (0, 1))(*given)
        return sum((each.square().sum() for each in found), torch.zeros(()))

    def of_one(*given: torch.Tensor) -> Any:
        return grad(penalty, (0, 1, 2))(*given)

    def stacked(*given: torch.Tensor) -> Any:
        with StackedLayers():
            return of_one(*given)

    ours, theirs = tensors((5,)), tensors((5,))
    for one, other in zip(vmap(stacked)(*ours), alone(of_one, theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-4 * float(other.abs().max()))
    assert used


def test_examples_are_mapped_within_clients() -> None:
    """As for gradients of each example: the weights are then a client's, not an example's."""
    inputs, weights, biases, *_ = tensors((5,))

    def of_one(example: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return grad(
            lambda own: functional.group_norm(example[None], 2, own, bias).square().sum().sin()
        )(weight)

    def stacked(*given: torch.Tensor) -> torch.Tensor:
        with StackedLayers():
            return of_one(*given)

    made = vmap(vmap(stacked, in_dims=(0, None, None)))(inputs, weights, biases)
    for client in range(CLIENTS):
        for example in range(BATCH):
            wanted = of_one(inputs[client, example], weights[client], biases[client])
            torch.testing.assert_close(made[client, example], wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("place", [0, 1])
def test_statistics_may_lie_otherwise(place: int) -> None:
    """They are updated where they are: as a part of a stack, and with clients in the last dimension."""
    inputs, weights, biases, means, variances = tensors((5,))
    whole = torch.stack([torch.zeros_like(means), means, variances, means])
    kept = [each if place == 0 else each.T.contiguous() for each in whole]

    def stacked(*given: torch.Tensor) -> torch.Tensor:
        with StackedLayers():
            return batch_norm(*given)

    in_dims = 0, 0, 0, place, place
    vmap(stacked, in_dims=in_dims)(inputs, weights, biases, kept[1], kept[2])
    for client in range(CLIENTS):
        batch_norm(*(each[client] for each in (inputs, weights, biases, means, variances)))
    for found, wanted in ((kept[1], means), (kept[2], variances)):
        torch.testing.assert_close(found if place == 0 else found.T, wanted)
    assert not kept[0].any() and torch.equal(kept[3], whole[3] if place == 0 else whole[3].T)


def test_shared_statistics_are_refused() -> None:
    inputs, weights, biases, means, variances = tensors((5,))

    def stacked(*given: torch.Tensor) -> torch.Tensor:
        with StackedLayers():
            return batch_norm(*given)

    with pytest.raises(RuntimeError, match="statistics that clients share"):
        vmap(stacked, in_dims=(0, 0, 0, None, None))(
            inputs, weights, biases, means[0], variances[0]
        )


X, ROW = torch.ones(4, 6, 3), torch.ones(6)
REFUSED: dict[str, Callable[[], torch.Tensor | None]] = {
    "evaluation": lambda: stacked_norms.batch_norm(X, ROW, ROW, ROW, ROW),
    "no weight": lambda: stacked_norms.batch_norm(X, ROW, ROW, None, None, True),
    "no bias": lambda: stacked_norms.group_norm(X, 2, ROW, None),
    "one statistic": lambda: stacked_norms.batch_norm(X, ROW, None, ROW, ROW, True),
    "float64": lambda: stacked_norms.batch_norm(X.double(), ROW, ROW, ROW, ROW, True),
    "float64 statistics": lambda: stacked_norms.batch_norm(X, ROW.double(), ROW, ROW, ROW, True),
    "other channels": lambda: stacked_norms.group_norm(X, 1, ROW[:3], ROW),
    "groups do not divide": lambda: stacked_norms.group_norm(X, 4, ROW, ROW),
    "no group": lambda: stacked_norms.group_norm(X, 0, ROW, ROW),
    "one value a channel": lambda: stacked_norms.batch_norm(X[:1, :, 0], ROW, ROW, ROW, ROW, True),
    "no sample": lambda: stacked_norms.batch_norm(X[:0], ROW, ROW, ROW, ROW, True),
    "no channel": lambda: stacked_norms.group_norm(X[0, 0], 1, ROW, ROW),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_rest_is_left_to_torch(case: str) -> None:
    assert REFUSED[case]() is None


def test_lower_precision_is_left_to_torch() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert stacked_norms.group_norm(X, 2, ROW, ROW) is None
