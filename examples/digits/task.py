"""Handwritten digits, 8 x 8 pixels, from scikit-learn; a small MLP."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn

import meadow

HOLDOUT = 360  # the last samples are nobody's: the server evaluates on them


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@cache
def images() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    return torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target)


def load_client(site: meadow.Site) -> meadow.ClientData:
    inputs, targets = (part[:-HOLDOUT] for part in images())
    mine = torch.from_numpy(site.share_of(targets.numpy()))
    is_test = torch.arange(len(mine)) % 5 == 4
    test, train = mine[is_test], mine[~is_test]
    return meadow.ClientData(
        train=(inputs[train], targets[train]), test=(inputs[test], targets[test])
    )


def load_holdout() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = images()
    return inputs[-HOLDOUT:], targets[-HOLDOUT:]


task = meadow.Task(
    model=build_model,
    loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy},
    client_data=load_client,
    server_data=load_holdout,
)
