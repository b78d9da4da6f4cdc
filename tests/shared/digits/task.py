"""examples/digits without scikit-learn, which takes each process of a federation longer than training."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

import meadow

HOLDOUT = 360  # the last samples are nobody's: the server evaluates on them


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@cache
def images() -> tuple[torch.Tensor, torch.Tensor]:
    found = find_spec("sklearn")
    assert found is not None and found.origin is not None
    table = np.loadtxt(
        Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=","
    )
    return torch.tensor(table[:, :-1] / 16.0).float(), torch.tensor(table[:, -1]).long()


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
