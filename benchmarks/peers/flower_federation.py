"""What the Flower programs share: a ServerApp, a ClientApp, and the timing of Ray's simulation.

As Flower's own examples do it: FedAvg weighted by "num-examples", no evaluation on clients, and
`run_simulation` with the Ray backend. By default an actor has one CPU, so there are as many actors
as CPUs; --cpus 2 is what Flower does when nothing is said. Actors train on one thread each, which
is faster than two for models this small.

Data is in memory: an actor makes all clients' data once. A cohort is what FedAvg samples.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterable

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from rounds import Rounds
from torch import nn
from workloads import BATCH_SIZE, DIGITS_MLP, LEARNING_RATE, Examples, dense_params, digits

__all__ = ["add_arguments", "simulate"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that every program has."""
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of an actor")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of an actor")


class TimedFedAvg(FedAvg):
    """FedAvg that ends a round when its updates are aggregated."""

    def __init__(self, clock: Rounds, share: float) -> None:
        super().__init__(fraction_train=share, fraction_evaluate=0.0)
        self._clock = clock

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        outcome = super().aggregate_train(server_round, replies)
        self._clock.end()
        return outcome


def simulate(
    divide: Callable[[int], list[Examples]],
    arguments: argparse.Namespace,
    *,
    clients: int,
    cohort: int,
    rounds: int,
) -> None:
    """Train the MLP of the digits for some rounds, evaluate on all digits, and report.

    `divide` makes the data of that many clients; it must be importable where the actors are.
    """
    clock = Rounds(several_processes=True)
    server = ServerApp()
    final: list[ArrayRecord] = []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = TimedFedAvg(clock, cohort / clients)
        initial = ArrayRecord(network().state_dict())
        final.append(strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds).arrays)

    run_simulation(
        server,
        client_app(divide, clients, arguments.threads),
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": arguments.cpus, "num_gpus": 0.0}},
    )
    clock.evaluated(accuracy(final[0]))
    clock.report(cpus=arguments.cpus, threads=arguments.threads)


@functools.cache
def divided(divide: Callable[[int], list[Examples]], clients: int) -> list[Examples]:
    """Divide the data, once a process."""
    return divide(clients)


def client_app(divide: Callable[[int], list[Examples]], clients: int, threads: int) -> ClientApp:
    """Return an app that trains one epoch of SGD on a client's shuffled data."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(threads)
        client = int(context.node_config["partition-id"])
        inputs, targets = map(torch.from_numpy, divided(divide, clients)[client])
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
        for batch in torch.randperm(len(targets)).split(BATCH_SIZE):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(targets)})
        arrays = ArrayRecord(model.state_dict())
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def network() -> nn.Sequential:
    """Build the MLP with the initial params that all peers share."""
    layers: list[nn.Module] = []
    for weight, bias in dense_params(DIGITS_MLP):
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@torch.no_grad()
def accuracy(arrays: ArrayRecord) -> float:
    """Evaluate on all digits."""
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    inputs, targets = digits()
    return float(np.mean(model(torch.from_numpy(inputs)).argmax(dim=1).numpy() == targets))
