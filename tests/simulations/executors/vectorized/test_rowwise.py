"""What draws random numbers or changes what it holds is not proven, and its proof leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from meadow.simulations.executors.vectorized.rowwise import rowwise_function, rowwise_graph

GENERATOR = torch.Generator()
DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(3),
    "a generator": lambda: torch.rand(3, generator=GENERATOR),
    "numpy": lambda: torch.full((3,), np.random.rand()),
    "python": lambda: torch.full((3,), random.random()),
}


class Noisy(nn.Module):
    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(4, 3), draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noisy: torch.Tensor = self.layer(x) + self.draw()
        return noisy


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("training", [True, False])
def test_noise_for_all_rows_is_no_constant(draw: str, training: bool) -> None:
    """A trace would keep what was drawn in it: every later batch would get the same."""
    at = GENERATOR.get_state()
    assert rowwise_graph(Noisy(DRAWS[draw]).train(training), torch.rand(3, 4)) is None
    assert torch.equal(GENERATOR.get_state(), at)
    still = Noisy(lambda: torch.ones(3)).train(training)
    assert rowwise_graph(still, torch.rand(3, 4)) is not None


@pytest.mark.parametrize("draw", DRAWS)
def test_noise_in_a_loss_is_no_constant(draw: str) -> None:
    outputs, targets = torch.rand(3, 4), torch.rand(3, 4)

    def noisy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().sum(1) * DRAWS[draw]().mean().item()

    at = GENERATOR.get_state()
    assert not rowwise_function(noisy, outputs, targets)
    assert torch.equal(GENERATOR.get_state(), at)


def test_a_proof_does_not_count_as_a_call() -> None:
    class Counts:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return (outputs - targets).square().sum(1)

    counts = Counts()
    assert rowwise_function(counts, torch.rand(3, 4), torch.rand(3, 4))
    assert counts.calls == 0
