"""Points of four classes in eight dimensions, which no client sees all of; a small MLP."""

from functools import cache

import torch
from torch import nn

import meadow


class Net(nn.Module):
    """What an algorithm may look at is a module with a name: the output of `body`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs))


@cache
def points(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(4, (count,), generator=generator)
    return centres[targets] + torch.randn(count, 8, generator=generator), targets


def load_client(site: meadow.Site) -> meadow.ClientData:
    inputs, targets = points(1, 400)
    mine = torch.from_numpy(site.share_of(targets.numpy()))
    return meadow.ClientData(train=(inputs[mine], targets[mine]))


task = meadow.Task(
    model=Net,
    loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy},
    client_data=load_client,
    server_data=lambda: points(2, 400),
)
