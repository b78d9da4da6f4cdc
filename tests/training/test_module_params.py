"""Params of a module: everything in its state_dict, to arrays and back, without surprises."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import meadow
from meadow.errors import AppError, ProtocolError
from meadow.training.module_params import build_module, load_params, params_of_module


class Odd(nn.Module):
    """A parameter or buffer of every dtype, a scalar, an empty one, and one that is not dense."""

    def __init__(self) -> None:
        super().__init__()
        self.normal = nn.Parameter(torch.randn(3, 2))
        self.transposed = nn.Parameter(torch.randn(3, 2).t())
        for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn):
            self.register_buffer("as_" + str(dtype).partition(".")[2], torch.randn(2, 2).to(dtype))
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("flag", torch.tensor([True, False]))
        self.register_buffer("empty", torch.zeros(0, 3))


def frozen(params: dict[str, Any]) -> dict[str, Any]:
    """Return the params as they are read from a file: read-only."""
    for array in params.values():
        array.flags.writeable = False
    return params


def test_every_dtype_comes_back() -> None:
    """What goes out of one module and into another is the same, bit by bit."""
    one, other = Odd(), Odd()
    params = frozen(params_of_module(one))
    assert params["as_bfloat16"].dtype.name == "bfloat16"
    assert params["count"].shape == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_params(other, params)
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor.float(), one.state_dict()[name].float()), name


def test_arrays_own_their_memory() -> None:
    """Training on does not change params that were taken before; nor do loaded ones follow."""
    module = nn.Linear(2, 2)
    params = params_of_module(module)
    kept = params["weight"].copy()
    with torch.no_grad():
        module.weight.add_(1)
    assert (params["weight"] == kept).all()
    load_params(module, params)
    with torch.no_grad():
        module.weight.add_(1)
    assert (params["weight"] == kept).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"weight": np.zeros((2, 3), np.float32)},
            r"'weight' is torch.float32 \(2, 3\), the model",
        ),
        ({"weight": np.zeros((2, 2), np.float64)}, "is torch.float64"),
        ({"scale": np.zeros(1, np.float32)}, r"missing \[\], unknown \['scale'\]"),
    ],
)
def test_other_models_params_are_refused(change: dict[str, Any], sentence: str) -> None:
    """Nothing is set unless all of it fits."""
    module = nn.Linear(2, 2)
    before = params_of_module(module)
    params = {name: values + 1 for name, values in before.items()}
    with pytest.raises(ProtocolError, match=sentence):
        load_params(module, {**params, **change})
    after = params_of_module(module)
    assert all((after[name] == before[name]).all() for name in before)


def test_order_is_part_of_the_params() -> None:
    """The same tensors in another order belong to another model."""
    params = params_of_module(nn.Linear(2, 2))
    with pytest.raises(ProtocolError, match="not in this model's order"):
        load_params(nn.Linear(2, 2), dict(reversed(params.items())))


def task_of(model: Any) -> meadow.Task:
    def nothing(*_: Any) -> Any:
        raise NotImplementedError

    return meadow.Task(model=model, loss=nothing, client_data=nothing)


def test_a_module_is_built_by_the_seed_alone() -> None:
    """The first params of a run depend on its seed, not on what the process drew before."""
    task = task_of(lambda: nn.Linear(3, 3))
    first = params_of_module(build_module(task, 1))
    torch.rand(5)
    again, other = (params_of_module(build_module(task, seed)) for seed in (1, 2))
    assert (first["weight"] == again["weight"]).all()
    assert (first["weight"] != other["weight"]).any()


def test_a_model_must_be_a_module() -> None:
    """A task that builds something else is told what it built."""
    with pytest.raises(AppError, match=r"must return a torch.nn.Module, got a dict"):
        build_module(task_of(dict), 0)
