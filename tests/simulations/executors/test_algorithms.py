"""Every training algorithm on every executor: the same model, and the same state at the clients."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from torch import nn

import meadow
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.executors.vectorized.executor import VectorizedExecutor
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.algorithms.algorithm import Algorithm
from meadow.strategies.algorithms.catalogue import CATALOGUE
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan
from meadow.training.module_params import build_module, params_of_module

identify_process(run_id=1, node_id=0)

CLIENTS = 5
SIZES = (23, 5, 14, 10, 30)
"""Unequal: with batches of 10 a client makes one to three steps an epoch."""
ROUNDS = 3
ATOL = 1e-4
TRAINING = [
    name for name, entry in CATALOGUE.items() if entry.together and entry.optimizer != "none"
]
"""Those whose clients train the whole model; test_other_work.py has the others."""
PERSONAL = [name for name in TRAINING if CATALOGUE[name].personal]
STACKED = [name for name in TRAINING if name not in PERSONAL]
LION_ATOL = 0.05
"""A gradient within rounding of 0 has either sign, and a step of a sign is the learning rate."""


class Small(nn.Module):
    """A norm's buffers and counter, tied weights and a frozen layer: all that is not plain."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(6)
        self.fixed = nn.Linear(6, 6).requires_grad_(False)
        self.out = nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(inputs))))
        result: torch.Tensor = self.out(self.fixed(self.norm(hidden)))
        return result


def linear() -> nn.Module:
    layers = {"first": nn.Linear(6, 8), "tanh": nn.Tanh(), "out": nn.Linear(8, 3)}
    return nn.Sequential(OrderedDict(layers))


def load(site: meadow.Site) -> meadow.ClientData:
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(SIZES[site.index], 6, generator=generator)
    inputs[:, site.index] += 1
    targets = inputs.argmax(1) % 3
    return meadow.ClientData(train=(inputs, targets), test=(inputs[:4], targets[:4]))


def task_of(model: Callable[[], nn.Module]) -> meadow.Task:
    return meadow.Task(
        model=model,
        loss=lambda out, want: nn.functional.cross_entropy(out, want, reduction="none"),
        client_data=load,
    )


def grid_of(
    task: meadow.Task, name: str, told: list[Any] | None = None, *, combine: bool = True
) -> SimulationGrid:
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})

    def tell(kind: str, detail: Any) -> None:
        assert told is not None, f"{kind}: {detail}"  # nothing may fall back silently
        told.append(detail["reason"])

    executor: Any = SequentialExecutor(meadow.client_app(task, device="cpu"), clients)
    if name == "vectorized":
        executor = VectorizedExecutor(
            task,
            clients,
            device="cpu",
            combine=combine,
            other=executor,
            sink=EventSink(event=tell),
        )
    return SimulationGrid(executor, clients)


def built(name: str) -> Algorithm:
    entry = CATALOGUE[name]
    return entry.builder(**entry.example)


def train(grid: SimulationGrid, task: meadow.Task, name: str, **settings: Any) -> dict[str, Any]:
    """Run some rounds of some of the clients, and return the params."""
    strategy = FederatedStrategy(built(name), RoundPlan(cohort=4, seed=1))
    config = {"batch-size": 10, "learning-rate": 0.1, "seed": 5, "epochs": 2, **settings}
    initial = params_to_arrays(params_of_module(build_module(task, 5)))
    result = strategy.start(grid, initial, ROUNDS, train_config=ConfigRecord(config))
    return arrays_to_params(result.arrays)


def kept(grid: SimulationGrid) -> dict[str, np.ndarray[Any, Any]]:
    """Return what the clients of a grid keep, by client and name."""
    found = {}
    for client in range(1, CLIENTS + 1):
        state = grid._clients.context_of(client).state
        for record in state.array_records.values():
            for name, values in arrays_to_params(record).items():
                found[f"{client}/{name}"] = values
    return found


def assert_close(found: dict[str, Any], expected: dict[str, Any], atol: float) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-3, atol=atol, err_msg=name)


@pytest.mark.parametrize("model", [Small, linear])
@pytest.mark.parametrize("name", STACKED)
def test_vectorized_is_sequential(name: str, model: Callable[[], nn.Module]) -> None:
    """Over several rounds the params and what clients keep agree within rounding."""
    task = task_of(model)
    one, many = grid_of(task, "sequential"), grid_of(task, "vectorized")
    settings = {"learning-rate": 0.01} if name == "fedlion" else {}
    atol = LION_ATOL if name == "fedlion" else ATOL
    expected = train(one, task, name, **settings)
    assert_close(train(many, task, name, **settings), expected, atol)
    assert_close(kept(many), kept(one), atol)
    assert bool(kept(one)) == (CATALOGUE[name].keeps != "nothing")


@pytest.mark.parametrize("name", STACKED)
def test_single_replies_are_the_combined_one(name: str) -> None:
    """Whether a cohort's updates are added up on the way makes no difference but rounding."""
    task = task_of(Small)
    single, combined = (grid_of(task, "vectorized", combine=each) for each in (False, True))
    assert_close(train(single, task, name), train(combined, task, name), ATOL)


@pytest.mark.parametrize("name", PERSONAL)
def test_vectorized_says_why_it_runs_clients_one_by_one(name: str) -> None:
    """Clients with params of their own are trained by the sequential executor, to the bit."""
    task, told = task_of(Small), []
    one, many = grid_of(task, "sequential"), grid_of(task, "vectorized", told)
    expected, found = train(one, task, name), train(many, task, name)
    assert "clients have params of their own" in told[0]
    for name_, values in expected.items():
        assert found[name_].tobytes() == values.tobytes()
    assert kept(many).keys() == kept(one).keys()


@pytest.mark.parametrize("name", TRAINING)
def test_it_learns(name: str) -> None:
    """The loss of what clients use is lower after some rounds."""
    task = task_of(Small if name == "fedbn" else linear)
    grid = grid_of(task, "sequential")
    strategy = FederatedStrategy(built(name), RoundPlan(seed=1))
    config = {"batch-size": 10, "learning-rate": 0.01 if name == "fedlion" else 0.1, "seed": 5}
    initial = params_to_arrays(params_of_module(build_module(task, 5)))
    rounds = 30 if name == "fedbn" else 8  # the norm makes steps smaller
    result = strategy.start(grid, initial, rounds, train_config=ConfigRecord(config))
    used = "personal-loss" if name in PERSONAL else "loss"
    losses = [row[used] for row in result.evaluate_metrics_clientapp.values()]
    assert losses[-1] < losses[0] - 0.05
