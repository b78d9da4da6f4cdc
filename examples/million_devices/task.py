"""A million devices with a few handwritten digits each; those with most of them are the latest.

Each device writes two of the digits 0 to 7. Four of five have 5 to 15 images of these; every fifth,
of somebody who writes much, has 10 to 20, and twice as many of the digits 8 and 9, which nobody
else has: it trains for four times as long. The images are scikit-learn's 1,797, drawn by the
device's number.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Subset, TensorDataset

import meadow

LATE_DIGITS = (8, 9)
"""Only devices that take long have them."""


@cache
def images(*, holdout: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Every fifth image is nobody's: the server evaluates on those."""
    pixels, digits = load_digits(return_X_y=True)
    chosen = (np.arange(len(digits)) % 5 == 0) == holdout
    return torch.tensor(pixels[chosen] / 16, dtype=torch.float32), torch.tensor(digits[chosen])


@cache
def pool() -> tuple[TensorDataset, list[np.ndarray]]:
    """Return the devices' images, and which of them are of each digit."""
    inputs, targets = images(holdout=False)
    return TensorDataset(inputs, targets), [
        np.flatnonzero(targets.numpy() == digit) for digit in range(10)
    ]


def load_device(site: meadow.Site) -> meadow.ClientData:
    data, of_digit = pool()
    draw = np.random.default_rng(site.index)
    first, second = draw.choice(min(LATE_DIGITS), 2, replace=False)
    common = np.concatenate([of_digit[first], of_digit[second]])
    if site.index % 5:
        rows = draw.choice(common, draw.integers(5, 16))
    else:
        count = int(draw.integers(10, 21))
        late = np.concatenate([of_digit[digit] for digit in LATE_DIGITS])
        rows = np.concatenate([draw.choice(common, count), draw.choice(late, 2 * count)])
    return meadow.ClientData(train=Subset(data, rows.tolist()))


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


task = meadow.Task(
    model=build_model,
    loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy},
    client_data=load_device,
    server_data=lambda: images(holdout=True),
)
