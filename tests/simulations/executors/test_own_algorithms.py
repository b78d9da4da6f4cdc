"""Algorithms of one's own on a model that has everything that is not plain, one by one and in one tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from torch import nn

import meadow
from meadow.config.own_algorithm import HERE
from meadow.errors import RunError
from meadow.flower.messages import arrays_to_params, params_to_arrays
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.executors.vectorized.executor import VectorizedExecutor
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan
from meadow.training.module_params import build_module, params_of_module

SIZES = (23, 5, 14, 10)
CLIENTS = len(SIZES)


class Net(nn.Module):
    """Dropout, a norm's buffers and counter, tied weights and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.3)
        self.fixed = nn.Linear(6, 6).requires_grad_(False)
        self.out = nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(inputs))))
        result: torch.Tensor = self.out(self.fixed(self.drop(self.norm(hidden))))
        return result


def load(site: meadow.Site) -> meadow.ClientData:
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(SIZES[site.index], 6, generator=generator)
    return meadow.ClientData(train=(inputs, inputs.argmax(1) % 3))


TASK = meadow.Task(model=Net, loss=meadow.cross_entropy, client_data=load)


class Everything(meadow.LocalAlgorithm):
    """A loss that looks at all there is, and an answer that keeps and sends all there is."""

    features = ("norm", "out")
    keeps = "last"
    state = {"count": (), "seen": (2,)}  # noqa: RUF012
    tensors = ("beside/one", "beside/many")

    def begins(self, start: torch.Tensor) -> torch.Tensor:
        return start

    def loss(self, step: meadow.TrainingStep) -> torch.Tensor:
        now = step.features["norm"]
        common = step.under(step.start)
        own = step.under(step.kept("last"))
        pulls = ((now - common.features["norm"]) ** 2).sum(1) - 0.1 * (own.outputs**2).sum(1)
        weight = step.client_state["count"] + step.shared["beside/many"].sum() + 1
        return step.task_losses() + 0.05 * weight.to(now.dtype) * pulls

    def answer(self, end: meadow.LocalRound) -> meadow.Answer:
        kept = {f"last/{name}": end.trained[name] for name in end.learned}
        count = end.client_state["count"] + 1
        seen = end.client_state["seen"] + torch.stack([count, end.steps], -1)
        sent = {"beside/one": count, "beside/many": end.shared["beside/many"] + 0.1 * seen}
        return meadow.Answer(
            params=end.trained, auxiliary=sent, client_state={**kept, "count": count, "seen": seen}
        )


def everything() -> meadow.Algorithm:
    def apply(state: meadow.State, aggregate: meadow.Aggregate) -> meadow.State:
        mean = {name: aggregate.mean[name] for name in state.params}
        return state.moved(mean, sent={"beside/many": aggregate.mean["beside/many"]})

    return meadow.averaging(
        "everything", apply=apply, client=Everything(),
        tensors={"beside/one": (), "beside/many": (2,)},
    )  # fmt: skip


def of_half(half: meadow.LocalAlgorithm, **more: Any) -> meadow.Algorithm:
    return meadow.averaging("own", client=half, **more)


def run(
    algorithm: meadow.Algorithm, executor: str, told: list[str] | None = None, **settings: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run three rounds of some clients; return the params, and what the clients keep."""
    task = replace(TASK, algorithm=lambda name, arguments: algorithm)
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    made: Any = SequentialExecutor(meadow.client_app(task, device="cpu"), clients)
    if executor == "vectorized":

        def tell(kind: str, detail: Any) -> None:
            assert told is not None, f"{kind}: {detail}"
            told.append(detail["reason"])

        made = VectorizedExecutor(
            task, clients, device="cpu", combine=True, other=made, verify=True,
            sink=EventSink(event=tell),
        )  # fmt: skip
    if algorithm.client is not None:
        algorithm = replace(algorithm, client_config={"algorithm": HERE})
    strategy = FederatedStrategy(algorithm, RoundPlan(cohort=3, seed=1))
    config = {"batch-size": 10, "learning-rate": 0.1, "seed": 5, "epochs": 2, **settings}
    initial = params_to_arrays(params_of_module(build_module(TASK, 5)))
    result = strategy.start(
        SimulationGrid(made, clients), initial, 3, train_config=ConfigRecord(config)
    )
    kept = {
        f"{client}/{name}": values
        for client in range(1, CLIENTS + 1)
        for record in clients.context_of(client).state.array_records.values()
        for name, values in arrays_to_params(record).items()
    }
    return arrays_to_params(result.arrays), kept


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"optimizer": "adam", "epochs": 1}])
def test_a_loss_of_everything(settings: dict[str, Any]) -> None:
    """Params, client state and auxiliary tensors agree within rounding."""
    alone, kept_alone = run(everything(), "sequential", **settings)
    together, kept_together = run(everything(), "vectorized", **settings)
    assert kept_alone.keys() == kept_together.keys() and any(
        "/count" in name for name in kept_alone
    )
    for one, other in ((alone, together), (kept_alone, kept_together)):
        for name, values in one.items():
            np.testing.assert_allclose(other[name], values, rtol=2e-4, atol=1e-4, err_msg=name)


class Plainly(meadow.LocalAlgorithm):
    """Trains as the trainer does."""

    def train(self, bench: meadow.TrainingBench) -> None:
        for inputs, targets in bench.batches():
            bench.losses(inputs, targets).mean().backward()
            bench.step()


class TaskLoss(meadow.LocalAlgorithm):
    """Follows the task's loss, as without it."""

    def loss(self, step: meadow.TrainingStep) -> torch.Tensor:
        return step.task_losses()


@pytest.mark.parametrize("half", [Plainly, TaskLoss])
@pytest.mark.parametrize("settings", [{}, {"gradient-clip-norm": 0.1, "momentum": 0.5}])
def test_what_adds_nothing_is_plain_training(
    half: Callable[[], meadow.LocalAlgorithm], settings: dict[str, Any]
) -> None:
    """To the last bit: the same batches, random numbers and steps."""
    plain, _ = run(meadow.averaging("plain"), "sequential", **settings)
    own, _ = run(of_half(half()), "sequential", **settings)
    for name, values in plain.items():
        assert own[name].tobytes() == values.tobytes(), name


def test_a_training_of_its_own_is_run_one_by_one() -> None:
    """And the reason is reported."""
    told: list[str] = []
    one, _ = run(of_half(Plainly()), "sequential")
    other, _ = run(of_half(Plainly()), "vectorized", told)
    assert told == [f"DataError: under strategy {HERE!r} clients make their steps themselves"]
    assert all(other[name].tobytes() == values.tobytes() for name, values in one.items())


class Undeclared(meadow.LocalAlgorithm):
    def answer(self, end: meadow.LocalRound) -> meadow.Answer:
        return meadow.Answer(params=end.trained, client_state={"more": end.steps})


class WrongShape(meadow.LocalAlgorithm):
    state = {"count": (3,)}  # noqa: RUF012

    def answer(self, end: meadow.LocalRound) -> meadow.Answer:
        return meadow.Answer(params=end.trained, client_state={"count": end.steps})


class Unasked(meadow.LocalAlgorithm):
    def answer(self, end: meadow.LocalRound) -> meadow.Answer:
        return meadow.Answer(params=end.trained, auxiliary={"beside/one": end.steps})


class MeanLoss(meadow.LocalAlgorithm):
    def loss(self, step: meadow.TrainingStep) -> torch.Tensor:
        return step.task_losses().mean()


class NoModule(meadow.LocalAlgorithm):
    features = ("nowhere",)

    def loss(self, step: meadow.TrainingStep) -> torch.Tensor:
        return step.task_losses()


class NoStep(meadow.LocalAlgorithm):
    def train(self, bench: meadow.TrainingBench) -> None:
        pass


MISTAKES = {
    Undeclared: "keeps 'more', which LocalAlgorithm.keeps and state do not declare",
    WrongShape: r"keeps 'count' with shape \(\), declared as \(3,\)",
    Unasked: "answers with the auxiliary tensor 'beside/one', which nobody sent",
    MeanLoss: r"loss must give one value per example, shape \(\d+,\), got \(\)",
    NoModule: "the model has no module 'nowhere', whose output the algorithm looks at; it has first,",
    NoStep: "the training loss of algorithm .* is None",
}


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("half", MISTAKES, ids=lambda half: half.__name__)
def test_mistakes_are_named(half: Callable[[], meadow.LocalAlgorithm], executor: str) -> None:
    """By the client that makes them, whichever way it is run."""
    told: list[str] = []
    with pytest.raises(RunError, match=MISTAKES[half]):
        run(of_half(half()), executor, told)


def test_an_optimizer_of_torch_is_run_one_by_one() -> None:
    """And says so; its momenta begin anew with every round, as Meadow's own."""
    told: list[str] = []
    chosen = {"optimizer": "torch.optim:NAdam", "learning-rate": 0.01}
    one, _ = run(meadow.averaging("plain"), "sequential", **chosen)
    other, _ = run(meadow.averaging("plain"), "vectorized", told, **chosen)
    assert len(told) == 1 and "'torch.optim:NAdam' is a class of torch" in told[0]
    assert all(other[name].tobytes() == values.tobytes() for name, values in one.items())


def test_under_flower_both_apps_name_it() -> None:
    """Without a meadow.toml: the server's app tells clients, whose app has the same half."""
    from flwr.app import Context, RecordDict

    algorithm = everything()
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    inner = meadow.client_app(TASK, device="cpu", strategy=algorithm)
    grid = SimulationGrid(SequentialExecutor(inner, clients), clients)
    config = meadow.make_config(
        {
            "run": {"rounds": 3, "cohort": 3, "seed": 5},
            "training": {"batch_size": 10, "learning_rate": 0.1, "epochs": 2},
        }
    )
    context = Context(0, 0, {}, RecordDict(), {})
    meadow.server_app(TASK, config, strategy=algorithm)(grid, context)
    states = [clients.context_of(client).state for client in range(1, CLIENTS + 1)]
    counts = [float(record["count"].numpy()) for s in states for record in s.array_records.values()]
    assert sum(counts) == 3 * 3, "a count for each client and round"
