"""A cohort divided among processes, each of which trains its group in one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from meadow.apps.folder import App
from meadow.errors import ConfigError
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.privacy.dp.mechanisms.clipping import Clipping
from meadow.simulations.executors.apps import vectorized_executor
from meadow.simulations.executors.choice import ExecutorPlan
from meadow.simulations.executors.contract import EventSink, Executor
from meadow.simulations.executors.processes.executor import ProcessesExecutor
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.algorithms.catalogue import CATALOGUE
from meadow.strategies.algorithms.combined import clients_of
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.broadcast import Broadcast
from meadow.strategies.rounds.plan import RoundPlan
from meadow.training.module_params import build_module, params_of_module

identify_process(run_id=1, node_id=0)

CLIENTS = 9
CLIP = 0.2
"""Some clients move further, some do not."""
APP = """
import torch
from torch import nn
import meadow

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.mid = nn.Linear(6, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, inputs):
        return self.out(torch.tanh(self.mid(self.norm(inputs))))

def load(site):
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(7 + 5 * site.index, 6, generator=generator)
    targets = inputs.argmax(1) % 3
    return meadow.ClientData(train=(inputs, targets), test=(inputs[:4], targets[:4]))

task = meadow.Task(model=Model, loss=meadow.cross_entropy, client_data=load)
"""
INSTRUCTION = {"server-round": 1, "seed": 5, "batch-size": 10, "learning-rate": 0.1}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> App:
    folder = tmp_path_factory.mktemp("groups") / "app"
    folder.mkdir()
    (folder / "task.py").write_text(APP)
    (folder / "meadow.toml").write_text("[run]\nrounds = 2\n")
    return App.load(folder)


events: list[tuple[str, Any]] = []


@pytest.fixture(scope="module")
def divided(app: App) -> Iterator[tuple[Executor, SimulatedClients]]:
    """Two processes, with clients of their own."""
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    sink = EventSink(event=lambda kind, detail: events.append((kind, detail)))
    plan = ExecutorPlan(name="vectorized", workers=2)
    executor = plan.make(app, clients, sink=sink)
    assert isinstance(executor, ProcessesExecutor) and executor.name == "vectorized"
    yield executor, clients
    executor.close()
    clients.close()


@pytest.fixture
def alone(app: App) -> Iterator[tuple[Executor, SimulatedClients]]:
    """The same in this process."""
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    yield vectorized_executor(app, clients, sink=EventSink()), clients
    clients.close()


def params_of(app: App) -> dict[str, Any]:
    return dict(params_of_module(build_module(app.load_task(), 5)))


def train(
    app: App, executor: Executor, clients: SimulatedClients, name: str, **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the params after three rounds, and the metrics of the last evaluation."""
    entry = CATALOGUE[name]
    strategy = FederatedStrategy(entry.builder(**entry.example), RoundPlan(cohort=7, seed=1))
    config = ConfigRecord({**INSTRUCTION, "epochs": 2, **more})
    grid, initial = SimulationGrid(executor, clients), params_to_arrays(params_of(app))
    result = strategy.start(grid, initial, 3, train_config=config)
    return arrays_to_params(result.arrays), dict(result.evaluate_metrics_clientapp[3])


def one_round(app: App, executor: Executor, kind: str, **more: Any) -> list[Any]:
    content = {
        "arrays": params_to_arrays(params_of(app)),
        "config": ConfigRecord({**INSTRUCTION, **more}),
    }
    order = Broadcast(RecordDict(content), kind, range(1, CLIENTS + 1), group_id="1")
    return list(executor.execute(order.numbered("1-1-")))


def close(found: dict[str, Any], expected: dict[str, Any], **within: float) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.asarray(found[name]).dtype == np.asarray(values).dtype
        left, right = (np.asarray(each).astype(np.float64) for each in (found[name], values))
        np.testing.assert_allclose(left, right, err_msg=name, **within)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedprox"])
def test_processes_give_what_one_gives(app: App, divided: Any, alone: Any, name: str) -> None:
    """Also where clients keep control variates, and in a norm's counter."""
    found, measured = train(app, *divided, name)
    expected, measured_alone = train(app, *alone, name)
    close(found, expected, rtol=1e-3, atol=1e-4)
    close(measured, measured_alone, rtol=1e-3, atol=1e-3)
    again, _ = train(app, *divided, name)
    if CATALOGUE[name].keeps == "nothing":
        assert all(np.array_equal(again[n], values) for n, values in found.items())


def test_a_group_is_not_rounded(app: App) -> None:
    """The mean over a group is float64, also of whole numbers: it is rounded with the others."""
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    group, whole = (
        vectorized_executor(app, clients, in_group=each, sink=EventSink()) for each in (True, False)
    )
    (found,), (expected,) = (
        [arrays_to_params(r.content.array_records["arrays"]) for r in one_round(app, each, "train")]
        for each in (group, whole)
    )
    assert {values.dtype for values in found.values()} == {np.dtype(np.float64)}
    assert found["norm.num_batches_tracked"] % 1 != 0
    for name, values in expected.items():
        kind = values.dtype
        rounded = np.rint(found[name]) if kind.kind == "i" else found[name]
        assert np.array_equal(rounded.astype(kind), values), name
    clients.close()


def test_what_single_clients_report_is_there(app: App, divided: Any, alone: Any) -> None:
    """The table of a combined reply, and a reply a client to an evaluation."""
    rows = []
    for executor, _ in (divided, alone):
        (reply,) = one_round(app, executor, "train")
        table = reply.content.metric_records["metrics"].table.in_order()
        assert table.clients == [*range(1, CLIENTS + 1)] == sorted(clients_of(reply))
        rows.append(table)
    assert rows[0].examples == rows[1].examples
    np.testing.assert_allclose(rows[0].metrics["loss"], rows[1].metrics["loss"], rtol=1e-4)
    evaluated = one_round(app, divided[0], "evaluate")
    assert sorted(client for reply in evaluated for client in clients_of(reply)) == rows[0].clients
    assert len(evaluated) == CLIENTS


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_clipped_sums_are_those_of_one_process(
    app: App, divided: Any, alone: Any, kind: Any
) -> None:
    """Each client's delta is clipped once, the mean is float64, and so is what noise is added to."""
    terms = {"dp-noise-multiplier": 1.0, "dp-noise": "server"}
    clipping = Clipping(kind=kind, clip_norm=CLIP)
    (found,), (expected,) = (
        one_round(app, executor, "train", **clipping.record(), **terms)
        for executor, _ in (divided, alone)
    )
    before = params_of(app)
    close(
        {**arrays_to_params(found.content.array_records["arrays"])},
        {**arrays_to_params(expected.content.array_records["arrays"])},
        rtol=1e-5,
        atol=1e-7,
    )
    assert arrays_to_params(found.content.array_records["arrays"])["out.weight"].dtype == np.float64
    moved = arrays_to_params(found.content.array_records["arrays"])
    floats = [name for name, values in before.items() if values.dtype.kind in "fV"]
    learned = [name for name in floats if "running" not in name]
    squares = sum(float(((moved[n] - before[n].astype(np.float64)) ** 2).sum()) for n in learned)
    assert 0 < squares**0.5 <= CLIP * (1 + 1e-9)
    tables = [r.content.metric_records["metrics"].table.in_order() for r in (found, expected)]
    assert tables[0].examples == tables[1].examples == [1.0] * CLIENTS
    assert tables[0].metrics == tables[1].metrics
    if kind == "adaptive":
        within = tables[0].metrics["dp-within-clip"]
        assert set(within) == {0.0, 1.0}


def test_no_group_fell_back(divided: Any) -> None:
    """All of the above was trained in tensors of many clients."""
    assert not events


def test_what_cannot_be_vectorized_is_said_once(app: App, divided: Any) -> None:
    """Not once a worker and a round."""
    for _ in range(2):
        assert one_round(app, divided[0], "train", precision="fp16")
    assert [kind for kind, _ in events] == ["not_vectorized"]


def test_a_task_of_this_process_has_no_others(app: App) -> None:
    """A task that was made in Python is refused with several workers, and the remedy is named."""
    import meadow

    with pytest.raises(ConfigError, match=r"without simulation\.workers"):
        meadow.simulate(
            app.load_task(), executor="vectorized", simulation={"workers": 2}, progress=False
        )


def test_an_app_of_flowers_is_refused_at_once(tmp_path: Path) -> None:
    """Before any process is started."""
    from ..arena import write_app

    other = write_app(tmp_path / "counting")
    clients = SimulatedClients(2, run_id=1, run_config={})
    plan = ExecutorPlan(name="vectorized", workers=2)
    with pytest.raises(ConfigError, match=r"trains a meadow\.Task"):
        plan.make(other, clients, sink=EventSink())
    clients.close()
