"""10,000 clients with 5 to 50 of scikit-learn's digits each; an MLP 64-64-10."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from workloads import DIGITS_MLP, dense_params, digits, scale_clients

import meadow


@cache
def clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = scale_clients()
    return [(torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in made]


def load_client(site: meadow.Site) -> meadow.ClientData:
    return meadow.ClientData(train=clients()[site.index])


def load_server() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = digits()
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def build_model() -> nn.Module:
    """Return the network with the params that the peers begin with."""
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    with torch.no_grad():
        for layer, (weight, bias) in zip(network[::2], dense_params(DIGITS_MLP), strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    return network


task = meadow.Task(
    model=build_model,
    loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy},
    client_data=load_client,
    server_data=load_server,
)
