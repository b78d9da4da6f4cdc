"""Federated averaging of softmax regression on digits, with Meadow: what is learned, from what."""

import digits
import torch

import meadow


def network() -> torch.nn.Linear:
    """Make the model, beginning with zeros."""
    model = torch.nn.Linear(64, 10)
    for param in model.parameters():
        torch.nn.init.zeros_(param)
    return model


task = meadow.Task(
    model=network,
    loss=meadow.cross_entropy,
    metrics={"accuracy": meadow.accuracy},
    client_data=lambda site: meadow.ClientData(
        train=meadow.datasets.arrays(*digits.client(site.index))
    ),
    server_data=lambda: meadow.datasets.arrays(*digits.holdout()),
)
