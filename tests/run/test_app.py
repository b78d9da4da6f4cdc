"""`server_app(task, config)`: the rounds of a configuration, on any Flower grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp
from torch import nn

import meadow
from meadow.flower.messages import arrays_to_params, identify_process
from meadow.run.app import initial_arrays, run_rounds
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.algorithms.mean import Forms
from meadow.transport.tensor_store import TensorStore

identify_process(run_id=1, node_id=0)
loads: list[int] = []


def samples(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long()


def holdout() -> tuple[torch.Tensor, torch.Tensor]:
    loads.append(1)
    return samples(99, 50)


def make_task(**changes: Any) -> meadow.Task:
    parts: dict[str, Any] = {
        "model": lambda: nn.Linear(4, 2),
        "loss": lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"),
        "metrics": {"accuracy": lambda o, t: (o.argmax(dim=1) == t).float()},
        "client_data": lambda site: meadow.ClientData(
            train=samples(site.index, 30), test=samples(site.index + 50, 10)
        ),
        "server_data": holdout,
    }
    return meadow.Task(**{**parts, **changes})


def config_of(**sections: Any) -> meadow.Config:
    base: dict[str, Any] = {
        "run": {"rounds": 3, "seed": 5},
        "training": {"learning_rate": 0.5, "batch_size": 10},
        "simulation": {"clients": 3},
    }
    return meadow.make_config({name: {**base.get(name, {}), **sections.get(name, {})}
                               for name in {**base, **sections}})  # fmt: skip


def grid_of(task: meadow.Task) -> SimulationGrid:
    clients = SimulatedClients(3, run_id=1, run_config={})
    return SimulationGrid(SequentialExecutor(meadow.client_app(task), clients), clients)


def test_it_is_a_flower_server_app() -> None:
    """Without a recorder it runs on a grid and leaves nothing behind."""
    task = make_task()
    app = meadow.server_app(task, config_of())
    assert isinstance(app, ServerApp)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    app(grid_of(task), context)


def test_a_run_learns_and_says_what_it_measured() -> None:
    """Each round has the clients' training, their evaluation, and the server's."""
    task = make_task()
    result = run_rounds(task, config_of(), grid_of(task))
    assert (result.status, result.rounds) == ("finished", 3)
    losses = [result.evaluate_metrics_serverapp[number]["loss"] for number in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert (
        set(result.train_metrics_clientapp) == set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    )


def test_a_run_begins_with_the_seeds_model() -> None:
    """The first params depend on the seed, and not on what the process drew before."""
    task = make_task()
    first = arrays_to_params(initial_arrays(task, 5))
    torch.rand(3)
    again, other = (arrays_to_params(initial_arrays(task, seed)) for seed in (5, 6))
    assert (first["weight"] == again["weight"]).all()
    assert (first["weight"] != other["weight"]).any()


def test_the_servers_data_are_loaded_once() -> None:
    """Central evaluation of every round uses the same data."""
    loads.clear()
    task = make_task()
    run_rounds(task, config_of(), grid_of(task))
    assert len(loads) == 1


def test_without_data_the_server_measures_nothing() -> None:
    """A task without server_data has no central metrics, and the run is the same otherwise."""
    runs = []
    for task in (make_task(), make_task(server_data=None)):
        runs.append(run_rounds(task, config_of(), grid_of(task)))
    assert not runs[1].evaluate_metrics_serverapp
    one, other = (arrays_to_params(run.arrays) for run in runs)
    assert all((one[name] == other[name]).all() for name in one)


def test_settings_reach_the_clients() -> None:
    """A gradient clipped to nothing moves nothing; without the clip the params move."""
    task = make_task()
    still = run_rounds(
        task, config_of(training={"gradient_clip_norm": 1e-12}, run={"rounds": 1}), grid_of(task)
    )
    before = arrays_to_params(initial_arrays(task, 5))
    after = arrays_to_params(still.arrays)
    assert all(np.allclose(before[name], after[name], atol=1e-9) for name in before)
    moved = arrays_to_params(run_rounds(task, config_of(), grid_of(task)).arrays)
    assert not np.allclose(before["weight"], moved["weight"], atol=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "yogi"])
def test_server_optimizers_are_built(optimizer: str) -> None:
    """Each server optimizer of the configuration runs, and they differ."""
    task = make_task()
    strategy = {"server_optimizer": optimizer}
    result = run_rounds(task, config_of(strategy=strategy), grid_of(task))
    plain = run_rounds(task, config_of(), grid_of(task))
    same = arrays_to_params(result.arrays)["weight"] == arrays_to_params(plain.arrays)["weight"]
    assert bool(same.all()) == (optimizer == "sgd")


@pytest.mark.parametrize(
    ("private", "stored"),
    [
        ({}, 3),
        ({"unit": "record", "noise_multiplier": 1.0, "sampling_rate": 0.1}, 3),
        ({"epsilon": 50.0}, 0),
    ],
    ids=["plain", "records", "clients"],
)
def test_where_means_are_made(tmp_path: Path, private: dict[str, Any], stored: int) -> None:
    """In the place that is given, round for round, also where the clients add the noise of their records; the noise
    on clients' updates is added in memory. The params are those of a run without such a place."""
    made: list[Path] = []

    def store(forms: Forms) -> TensorStore:
        made.append(tmp_path / str(len(made)))
        return TensorStore(made[-1], forms)

    task, found = make_task(), []
    privacy = {"differential_privacy": {"enabled": True, **private}} if private else {}
    config = config_of(privacy=privacy, evaluation={"every": 0})
    for place in (None, store):
        result = run_rounds(task, config, grid_of(task), store=place)
        found.append(arrays_to_params(result.arrays))
    assert len(made) == stored
    if "epsilon" not in private:  # its noise is another one in every run
        for name, values in found[0].items():
            assert values.shape == found[1][name].shape
            assert private or values.tobytes() == found[1][name].tobytes()
