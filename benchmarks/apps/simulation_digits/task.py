"""scikit-learn's digits: client i holds the examples i, i + clients, ...; an MLP 64-64-10."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset
from workloads import DIGITS_MLP, dense_params, digits

import meadow


@cache
def pool() -> TensorDataset:
    inputs, targets = digits()
    return TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))


def load_client(site: meadow.Site) -> meadow.ClientData:
    rows = torch.arange(site.index, len(pool()), site.count)
    return meadow.ClientData(train=Subset(pool(), rows))


def load_server() -> tuple[torch.Tensor, ...]:
    return pool().tensors


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
