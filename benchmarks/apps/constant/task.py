"""A model of random float32 params, and a step that adds a constant of the client's own.

The size in MB is in MODEL_MB of the environment, 100 if unset. Nothing repeats, so nothing can be
saved by sending
once what is the same everywhere.
"""

import os

import torch
from torch import nn

import meadow

MODEL_MB = int(os.environ.get("MODEL_MB", "100"))


class Vector(nn.Module):
    """Tensors of up to 100 MB each; the outputs are the inputs times their sum."""

    def __init__(self) -> None:
        super().__init__()
        count, each = max(250, MODEL_MB * 250_000), 25_000_000
        self.values = nn.ParameterList(
            nn.Parameter(torch.randn(min(each, count - start))) for start in range(0, count, each)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * torch.stack([values.sum() for values in self.values]).sum()


def identity(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs


def load_client(site: meadow.Site) -> meadow.ClientData:
    # The gradient of one step is this input, for every param.
    one = torch.tensor([0.001 * (site.index + 1)])
    return meadow.ClientData(train=(one, torch.zeros(1)))


task = meadow.Task(model=Vector, loss=identity, client_data=load_client)
