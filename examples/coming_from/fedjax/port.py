"""Federated averaging of softmax regression on digits, with Meadow: the algorithm written out."""

import digits
import torch

import meadow


def network() -> torch.nn.Linear:
    """Make the model, beginning with zeros."""
    model = torch.nn.Linear(64, 10)
    for param in model.parameters():
        torch.nn.init.zeros_(param)
    return model


class Client(meadow.LocalAlgorithm):
    """A client's half."""

    def train(self, bench: meadow.TrainingBench) -> None:
        """Make a step on each batch."""
        for inputs, targets in bench.batches():
            losses = bench.losses(inputs, targets)
            bench.module.zero_grad()
            losses.mean().backward()
            bench.step()


@meadow.builder
def federated_averaging() -> meadow.Algorithm:
    """Go to the clients' mean, weighted by their examples."""

    def apply(state: meadow.State, aggregate: meadow.Aggregate) -> meadow.State:
        return state.moved({name: aggregate.mean[name] for name in state.params})

    return meadow.averaging("written out", client=Client(), apply=apply)


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
        strategy=federated_averaging(),
        clients=digits.CLIENTS,
        rounds=10,
        training=meadow.Training(epochs=5, batch_size=1000, learning_rate=0.5),
    )
    digits.report(list(run.metrics["server.accuracy"]), **run.params())
