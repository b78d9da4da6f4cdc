"""One number, whose training rounds nowhere that depends on the machine: every model is exact."""

import torch
from torch import nn

import meadow


class Number(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.value - inputs[:, 0]


def distance(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs * outputs


def load_client(site: meadow.Site) -> meadow.ClientData:
    inputs = torch.tensor([[1.0 + site.index], [3.0 - site.index / 4]])
    return meadow.ClientData(train=(inputs, torch.zeros(2)))


task = meadow.Task(model=Number, loss=distance, client_data=load_client)
