"""A line through points: each site knows the points of its own region."""

from __future__ import annotations

import torch

import meadow

POINTS = 64


def points(region: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of one region, the same whenever they are asked for."""
    generator = torch.Generator().manual_seed(region)
    inputs = torch.randn(POINTS, 3, generator=generator) + region / 8
    noise = torch.randn(POINTS, 1, generator=generator) / 100
    return inputs, inputs @ torch.tensor([[1.0], [-2.0], [0.5]]) + noise


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return each example's squared error."""
    return (outputs - targets).square().squeeze(1)


task = meadow.Task(
    model=lambda: torch.nn.Linear(3, 1),
    loss=squared_error,
    client_data=lambda site: meadow.ClientData(
        train=points(site.index), test=points(site.index + 4)
    ),
    server_data=lambda: points(9),
)
