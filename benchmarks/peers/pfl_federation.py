"""What the pfl-research programs share: federated averaging with its public API, and the timing.

As pfl's own benchmarks do it: SimulatedBackend, FederatedAveraging, PyTorchModel, tensors in
memory, weights by the number of data points. With two processes (the default) each trains half of
the cohort and they add up over gloo, which is how pfl uses several workers: on two cores it is
faster than one process with one or two threads in every one of these programs, whose docstrings
have the figures: median seconds a round, pfl 0.6.0, torch 2.13.0, two virtual cores (AMD EPYC).
Fused SGD (--fused) and torch.compile (--compile) were not faster.

Departures: batches are shuffled in each epoch (pfl's data sets never shuffle), metrics are not
printed, and in the first round pfl evaluates on every client, which cannot be switched off; that
round is reported apart from the others.
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from rounds import Rounds
from workloads import BATCH_SIZE, LEARNING_RATE, Examples, cohorts

if TYPE_CHECKING:
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from torch import nn

__all__ = ["accuracy_on", "arguments_of", "dense_network", "simulate", "with_loss"]


def arguments_of(program: str, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line; with --processes 2, also start the second process.

    Must be called before pfl is imported: it reads its addresses and threads from the environment.
    """
    parser.add_argument("--threads", type=int, default=1, help="torch threads of a process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the cohorts and the batches")
    parser.add_argument("--fused", action="store_true", help="torch's fused SGD")
    parser.add_argument("--compile", action="store_true", help="pfl's use_torch_compile")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.processes > 1 and "PFL_WORKER_RANK" not in os.environ:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        os.environ["PFL_WORKER_ADDRESSES"] = ",".join([address] * arguments.processes)
        for rank in range(1, arguments.processes):
            environment = os.environ | {"PFL_WORKER_RANK": str(rank)}
            subprocess.Popen(
                [sys.executable, program, *sys.argv[1:]], env=environment, stdout=subprocess.DEVNULL
            )
        os.environ["PFL_WORKER_RANK"] = "0"
    return arguments


def simulate(
    network: nn.Module,
    clients: list[Examples],
    arguments: argparse.Namespace,
    *,
    cohort: int,
    rounds: int,
    epochs: int = 1,
    learning_rate: float = LEARNING_RATE,
    optimizer: str = "sgd",
    momentum: float = 0.0,
    accuracy: Callable[[], float] | None = None,
    enough: float | None = None,
) -> None:
    """Train `network` and report; evaluate after every round if `enough` is given, else at the end.

    `enough` is the accuracy at which training stops. Evaluation is never timed.
    """
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(arguments.threads)
    np.random.seed(arguments.seed)  # pfl draws the seeds of everything from it
    torch.manual_seed(100 * arguments.seed + int(os.environ.get("PFL_WORKER_RANK", "0")))
    clock = Rounds(several_processes=arguments.processes > 1)
    local = functools.partial(torch.optim.SGD, fused=arguments.fused or None, momentum=momentum)
    if optimizer == "adam":
        local = functools.partial(torch.optim.Adam, fused=arguments.fused or None)
    model = PyTorchModel(
        model=network,
        local_optimizer_create=local,
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
        use_torch_compile=arguments.compile,
    )
    data = _federated(clients, cohort, arguments.seed)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=epochs, local_learning_rate=learning_rate, local_batch_size=BATCH_SIZE
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[_timing(clock, accuracy, enough)],
        send_metrics_to_platform=False,
    )
    if enough is None and accuracy is not None:
        clock.evaluated(accuracy())
    clock.report(threads=arguments.threads, processes=arguments.processes)


def dense_network(params: list[tuple[np.ndarray, np.ndarray]]) -> nn.Module:
    """Build dense layers of these params with ReLU between them."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for weight, bias in params:
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
        layers += [layer, nn.ReLU()]
    return with_loss(nn.Sequential(*layers[:-1]))


def with_loss(network: nn.Module) -> nn.Module:
    """Give a network the two methods that pfl calls: `loss` and `metrics`."""
    import torch
    from pfl.metrics import Weighted

    def loss(inputs, targets, **_):
        return torch.nn.functional.cross_entropy(network(inputs), targets)

    @torch.no_grad()
    def metrics(inputs, targets, **_):
        right = (network(inputs).argmax(dim=1) == targets).sum().item()
        return {"accuracy": Weighted(right, len(targets))}

    network.loss, network.metrics = loss, metrics
    return network


def accuracy_on(network: nn.Module, examples: Examples) -> Callable[[], float]:
    """Return a function that evaluates the network on all of the examples at once."""
    import torch

    inputs, targets = map(torch.from_numpy, examples)

    @torch.no_grad()
    def accuracy() -> float:
        return (network(inputs).argmax(dim=1) == targets).float().mean().item()

    return accuracy


def _users(clients: int, cohort: int, seed: int) -> Iterator[int]:
    for drawn in cohorts(clients, cohort, seed):
        yield from drawn.tolist()


def _federated(clients: list[Examples], cohort: int, seed: int) -> FederatedDataset:
    import torch
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset

    class Shuffled(PyTorchTensorDataset):
        """A client's data whose batches differ in every epoch."""

        def iter(self, batch_size: int | None) -> Iterator[tuple[torch.Tensor, ...]]:
            order = torch.randperm(len(self))
            columns = (column[order] for column in self.raw_data)
            return zip(*(column.split(batch_size or len(self)) for column in columns), strict=True)

    tensors = [tuple(map(torch.from_numpy, examples)) for examples in clients]
    users = _users(len(clients), cohort, seed)
    return FederatedDataset(lambda user: Shuffled(tensors[user]), lambda: next(users))


def _timing(
    clock: Rounds, accuracy: Callable[[], float] | None, enough: float | None
) -> TrainingProcessCallback:
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    class Timing(TrainingProcessCallback):
        """Ends a round, evaluates, and starts the next."""

        def on_train_begin(self, *, model):
            clock.start()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            clock.end()
            reached = False
            if enough is not None and accuracy is not None:
                clock.evaluated(value := accuracy())
                reached = value >= enough
            clock.start()
            return reached, Metrics()

    return Timing()
