"""Tumours, benign or malignant, by 30 measurements (scikit-learn's); a logistic regression."""

from functools import cache

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import meadow

HOLDOUT = 119  # the last samples are no hospital's: the server evaluates on them


@cache
def samples() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_breast_cancer()
    inputs = torch.tensor(data.data, dtype=torch.float32).log1p()
    return inputs - inputs[-HOLDOUT:].mean(0), torch.tensor(data.target)


def load_client(site: meadow.Site) -> meadow.ClientData:
    inputs, targets = (part[:-HOLDOUT] for part in samples())
    mine = torch.from_numpy(site.share_of(targets.numpy()))
    is_test = torch.arange(len(mine)) % 5 == 4
    test, train = mine[is_test], mine[~is_test]
    return meadow.ClientData(
        train=(inputs[train], targets[train]), test=(inputs[test], targets[test])
    )


def load_holdout() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = samples()
    return inputs[-HOLDOUT:], targets[-HOLDOUT:]


task = meadow.Task(
    model=lambda: nn.Linear(30, 2),
    loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy},
    client_data=load_client,
    server_data=load_holdout,
)
