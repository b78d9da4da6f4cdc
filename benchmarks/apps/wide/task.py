"""A network of 25 M float32 params, and 1,024 examples of noise at each client to train it on."""

import torch
from torch import nn

import meadow

EXAMPLES, FEATURES, WIDTH, CLASSES = 1024, 512, 4096, 1500


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, CLASSES),
    )


def load_client(site: meadow.Site) -> meadow.ClientData:
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(EXAMPLES, FEATURES, generator=generator)
    return meadow.ClientData(
        train=(inputs, torch.randint(CLASSES, (EXAMPLES,), generator=generator))
    )


task = meadow.Task(model=build_model, loss=meadow.cross_entropy, client_data=load_client)
