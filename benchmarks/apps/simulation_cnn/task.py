"""The CNN of pfl-research's CIFAR-10 benchmark on random images: 50 clients of 50.

Source of the network: pfl-research, benchmarks/model/pytorch/cnn.py, `simple_cnn`.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from workloads import image_clients

import meadow


@cache
def clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = image_clients()
    return [(torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in made]


def load_client(site: meadow.Site) -> meadow.ClientData:
    return meadow.ClientData(train=clients()[site.index])


def build_model() -> nn.Module:
    layers = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(12_544, 128), nn.ReLU()),
        *(nn.Dropout(0.5), nn.Linear(128, 10)),
    )
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return layers


task = meadow.Task(model=build_model, loss=meadow.cross_entropy, client_data=load_client)
