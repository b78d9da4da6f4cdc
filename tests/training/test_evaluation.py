"""Evaluation: means over samples, without a trace in the module or the generators."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import meadow
from meadow.errors import DataError
from meadow.training.evaluation import ExampleMeans, evaluate


def task_with(**parts: Any) -> meadow.Task:
    plain: dict[str, Any] = {
        "model": lambda: nn.Linear(1, 1),
        "loss": lambda outputs, targets: (outputs.flatten() - targets).square(),
        "metrics": {"error": lambda outputs, targets: (outputs.flatten() - targets).abs()},
        "client_data": lambda site: None,
    }
    return meadow.Task(**{**plain, **parts})


def data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(count, dtype=torch.float32).reshape(-1, 1), torch.zeros(count)


def test_means_are_over_samples_not_batches() -> None:
    """300 samples in batches of 256 and 44 count alike: the mean of 0..299 and of their squares."""
    examples, means = evaluate(task_with(), nn.Identity(), data(300), batch_size=1)
    assert examples == 300
    assert means == {"loss": sum(x * x for x in range(300)) / 300, "error": 149.5}


def test_the_batch_size_does_not_matter() -> None:
    """Metrics of one value an example are summed in float64, in whatever pieces they come."""
    module = nn.Linear(1, 1)
    small, large = (
        evaluate(task_with(), module, data(2000), batch_size=size)[1] for size in (256, 2000)
    )
    assert small == pytest.approx(large, rel=1e-7)


def test_nothing_is_left_behind() -> None:
    """The module's mode, its buffers and gradients, and the generators are as they were."""
    module = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(0.5))
    module[1].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.random.get_rng_state()
    evaluate(task_with(), module, data(8), batch_size=4)
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(param.grad is None for param in module.parameters())
    assert module.training


def test_the_mode_comes_back_after_an_error() -> None:
    """A module that was in training mode trains on, also if the data were useless."""
    module = nn.Linear(1, 1)
    with pytest.raises(DataError):
        evaluate(task_with(), module, data(0), batch_size=4)
    assert module.training
    module.eval()
    evaluate(task_with(), module, data(2), batch_size=4)
    assert not module.training


def test_random_layers_give_the_same_numbers_each_time() -> None:
    """A module that draws numbers in evaluation draws the same ones, whatever ran before."""

    class Noise(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs + torch.randn_like(inputs)

    first = evaluate(task_with(), Noise(), data(8), batch_size=4)
    torch.manual_seed(123)
    torch.rand(7)
    assert evaluate(task_with(), Noise(), data(8), batch_size=4) == first


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a mean loss": (
        {"loss": lambda outputs, targets: outputs.mean()},
        r'loss must give one value per example, shape \(4,\), got \(\); .*reduction="none"',
    ),
    "a metric for each output": (
        {"metrics": {"accuracy": lambda outputs, targets: outputs}},
        r"accuracy must give one value per example, shape \(4,\), got \(4, 1\)",
    ),
    "a plain number": (
        {"metrics": {"accuracy": lambda outputs, targets: 0.5}},
        "accuracy must give one value per example, shape .*, got float",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_value_an_example_is_needed(case: str) -> None:
    """Anything else could not be weighted by samples; the remedy is named."""
    parts, sentence = WRONG[case]
    with pytest.raises(DataError, match=sentence):
        evaluate(task_with(**parts), nn.Linear(1, 1), data(4), batch_size=4)


def test_nothing_has_no_mean() -> None:
    """The mean of no examples is not a number, never 0."""
    means = ExampleMeans(task_with()).means()
    assert all(math.isnan(value) for value in means.values())
