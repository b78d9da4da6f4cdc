"""Federated averaging of softmax regression on digits, with Meadow."""

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

if __name__ == "__main__":
    run = meadow.simulate(
        task,
        strategy=meadow.fedavg(),
        clients=digits.CLIENTS,
        rounds=10,
        training=meadow.Training(epochs=5, batch_size=1000, learning_rate=0.5),
    )
    digits.report(list(run.metrics["server.accuracy"]), **run.params())
