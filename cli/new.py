"""`meadow new`: a new app that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import AppError
from .output import Format, FormatOption, say

__all__ = ["new"]

TASK = '''"""What is learned, from what: replace the model and the data by yours."""

import meadow
import torch
from torch import nn


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def samples(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 8, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long()


def load_client(site: meadow.Site) -> meadow.ClientData:
    # A real site reads its own files here; site.config holds the keys of its client.toml.
    return meadow.ClientData(train=samples(site.index, 200), test=samples(1000 + site.index, 50))


def load_holdout() -> tuple[torch.Tensor, torch.Tensor]:
    return samples(999_999, 500)


task = meadow.Task(
    model=build_model,
    loss=meadow.cross_entropy,  # or any function that gives a value an example
    metrics={"accuracy": meadow.accuracy},
    client_data=load_client,
    server_data=load_holdout,
)
'''

CONFIG = """\
[app]
task = "task:task"

[run]
rounds = 10
seed = 7
min_clients = 2

[strategy]
name = "fedavg"

[training]
epochs = 1
batch_size = 20
optimizer = "sgd"
learning_rate = 0.1

[simulation]
clients = 5
"""


def new(
    name: Annotated[Path, typer.Argument(help="the folder to make")],
    format: FormatOption = Format.TEXT,
) -> None:
    """Make a new app that runs."""
    if name.exists():
        raise AppError(f"{name} exists already; nothing was changed")
    name.mkdir(parents=True)
    (name / "task.py").write_text(TASK)
    (name / "meadow.toml").write_text(CONFIG)
    say(
        format,
        f"{name}/task.py and {name}/meadow.toml are there; try it:  meadow simulate {name}",
        folder=str(name),
        files=["task.py", "meadow.toml"],
    )
