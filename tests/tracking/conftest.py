"""A small task that is made in this process."""

from __future__ import annotations

import pytest
import torch

import meadow


def samples(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points and on which side of a plane they are."""
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs.sum(dim=1) > 0).long()


@pytest.fixture
def task() -> meadow.Task:
    """A task of eight-sample clients, with data on the server."""
    return meadow.Task(
        model=lambda: torch.nn.Linear(4, 2),
        loss=meadow.cross_entropy,
        metrics={"accuracy": meadow.accuracy},
        client_data=lambda site: meadow.ClientData(
            train=samples(site.index, 8), test=samples(100 + site.index, 4)
        ),
        server_data=lambda: samples(999, 50),
    )
