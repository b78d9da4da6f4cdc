"""Devices with 5 to 50 of scikit-learn's digits each, drawn by the device's number; an MLP 64-64-10."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset
from workloads import digits

import meadow


@cache
def pool() -> TensorDataset:
    inputs, targets = digits()
    return TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))


def load_device(site: meadow.Site) -> meadow.ClientData:
    draw = np.random.default_rng(site.index)
    rows = draw.integers(len(pool()), size=draw.integers(5, 51))
    return meadow.ClientData(train=Subset(pool(), rows.tolist()))


def load_server() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = pool().tensors
    return inputs, targets


task = meadow.Task(
    model=lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy},
    client_data=load_device,
    server_data=load_server,
)
