"""scikit-learn's digits and an MLP of 2,000 parameters (64-26-10: 1,960)."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn

import meadow


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 26), nn.ReLU(), nn.Linear(26, 10))


@cache
def images() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    return torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target)


def load_client(site: meadow.Site) -> meadow.ClientData:
    inputs, targets = images()
    mine = torch.from_numpy(site.share_of(targets.numpy()))
    cut = len(mine) * 4 // 5
    train, test = mine[:cut], mine[cut:]
    return meadow.ClientData(
        train=(inputs[train], targets[train]), test=(inputs[test], targets[test])
    )


task = meadow.Task(
    model=build_model,
    loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy},
    client_data=load_client,
)
