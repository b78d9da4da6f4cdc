"""McMahan's 2NN on 5,000 MNIST images: 100 clients of 40, 1,000 images to test with.

MEADOW_BENCHMARK_DIVISION says how: "iid", or "shards" of two classes a client.
Source: McMahan et al. 2017 (arXiv 1602.05629), section 3.
"""

from __future__ import annotations

import os
from functools import cache

import torch
from torch import nn
from workloads import MCMAHAN_2NN, dense_params, mnist, mnist_clients

import meadow


@cache
def clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = mnist_clients(mnist()[0], os.environ["MEADOW_BENCHMARK_DIVISION"])
    return [(torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in made]


def load_client(site: meadow.Site) -> meadow.ClientData:
    return meadow.ClientData(train=clients()[site.index])


def load_server() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = mnist()[1]
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def build_model() -> nn.Module:
    """Return the network with the params that the peers begin with."""
    first, second, third = (nn.Linear(*sizes) for sizes in ((784, 200), (200, 200), (200, 10)))
    with torch.no_grad():
        for layer, (weight, bias) in zip(
            (first, second, third), dense_params(MCMAHAN_2NN), strict=True
        ):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)


task = meadow.Task(
    model=build_model,
    loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy},
    client_data=load_client,
    server_data=load_server,
)
