"""Whatever a model does: vectorized trains what sequential trains, and clients stay apart."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from torch import nn

import meadow
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.executors.vectorized import recorded_steps
from meadow.simulations.executors.vectorized.executor import VectorizedExecutor
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.algorithms.catalogue import CATALOGUE
from meadow.strategies.algorithms.combined import columns_in
from meadow.strategies.rounds.broadcast import Broadcast
from meadow.training.module_params import build_module, params_of_module

from .model_zoo import SIZES, ZOO, Habit, data_of, of_two

identify_process(run_id=1, node_id=0)

RTOL, ATOL = 2e-4, 2e-5
SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"learning-rate": 0.1},
    "momentum": {"learning-rate": 0.05, "momentum": 0.9, "weight-decay": 0.01},
    "adam": {"optimizer": "adam", "learning-rate": 0.01, "epsilon": 1e-3},
}
Updates = dict[int, tuple[dict[str, Any], dict[str, Any]]]
"""The params and the metrics of each client's reply."""


def task_of(habit: Habit, *, poked: int | None = None) -> meadow.Task:
    return meadow.Task(
        model=habit.build,
        loss=habit.make_loss() if habit.make_loss else habit.loss,
        metrics=habit.metrics,
        client_data=lambda site: meadow.ClientData(
            train=data_of(site.index, habit.inputs, poked),
            test=data_of(site.index, habit.inputs, poked),
        ),
    )


def order_of(task: meadow.Task, kind: str, settings: dict[str, Any]) -> Broadcast:
    config = ConfigRecord({"batch-size": 10, "seed": 5, "server-round": 2, "epochs": 2, **settings})
    arrays = params_to_arrays(params_of_module(build_module(task, 5)))
    content = RecordDict({"arrays": arrays, "config": config})
    clients = tuple(range(1, len(SIZES) + 1))
    return Broadcast(content, kind, clients, group_id="2", id_prefix="m-")


def executor_of(name: str, task: meadow.Task, reasons: list[str]) -> Any:
    clients = SimulatedClients(len(SIZES), run_id=1, run_config={})
    sequential = SequentialExecutor(meadow.client_app(task, device="cpu"), clients)
    if name == "sequential":
        return sequential
    sink = EventSink(event=lambda kind, detail: reasons.append(f"{kind}: {detail}"))
    return VectorizedExecutor(
        task, clients, device="cpu", combine=False, other=sequential, sink=sink
    )


@cache
def run(
    name: str,
    model: str,
    settings: str = "sgd",
    *,
    kind: str = MessageType.TRAIN,
    poked: int | None = None,
    time: int = 1,
) -> tuple[Updates, list[str]]:
    """Return each client's update, and why clients were run one by one, if they were.

    The same run is made again for another `time`.
    """
    reasons: list[str] = []
    task = task_of(ZOO[model], poked=poked)
    executor = executor_of(name, task, reasons)
    return updates_of(executor.execute(order_of(task, kind, SETTINGS[settings]))), reasons


def updates_of(replies: Iterable[Message]) -> Updates:
    made = {}
    for reply in replies:
        assert not reply.has_error(), reply.error.reason
        records = reply.content.array_records
        params = dict(arrays_to_params(records["arrays"])) if records else {}
        metrics = dict(reply.content.metric_records["metrics"])
        made[reply.metadata.src_node_id] = params, metrics
    assert sorted(made) == list(range(1, len(SIZES) + 1))
    return made


def assert_alike(found: Updates, expected: Updates) -> None:
    for client, (params, metrics) in expected.items():
        ours, measured = found[client]
        assert list(ours) == list(params)
        for name, values in params.items():
            assert ours[name].dtype == values.dtype
            np.testing.assert_allclose(
                ours[name], values, rtol=RTOL, atol=ATOL, err_msg=f"client {client}: {name}"
            )
        for name, value in metrics.items():
            assert measured[name] == pytest.approx(value, rel=1e-3, abs=1e-5), (client, name)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("model", ZOO)
def test_every_model_trains_as_alone(model: str, settings: str) -> None:
    """Each client's params are those of sequential, whether the cohort is one tensor or not."""
    expected, _ = run("sequential", model, settings)
    found, reasons = run("vectorized", model, settings)
    assert_alike(found, expected)
    assert bool(reasons) != ZOO[model].stacked, reasons


@pytest.mark.parametrize("model", ZOO)
def test_later_rounds_are_trained_and_evaluated_as_alone(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor keeps its module, and what it found out about it: no round leaves another one anything."""
    # Recording takes long; test_recorded_steps.py does it.
    monkeypatch.setattr(recorded_steps, "RECORD_AFTER", 1 << 30)
    found, reasons = [], list[str]()
    for name in ("sequential", "vectorized"):
        task = task_of(ZOO[model])
        executor, answers = executor_of(name, task, reasons), []
        for number in range(1, 4):
            for kind in (MessageType.TRAIN, MessageType.EVALUATE):
                order = order_of(task, kind, {"learning-rate": 0.1, "server-round": number})
                answers.append(updates_of(executor.execute(order)))
        found.append(answers)
    for expected, made in zip(*found, strict=True):
        if all(params for params, _ in expected.values()):
            assert_alike(made, expected)
        else:
            assert_measured_alike(made, expected)
    assert bool(reasons) != ZOO[model].stacked, reasons


@pytest.mark.parametrize("model", [name for name in ZOO if name.startswith("modes of one's own")])
def test_losses_before_a_round_are_measured_and_then_trained(model: str) -> None:
    """A module is evaluated and goes back to training within a round, with all that its modes set."""
    found, reasons = [], list[str]()
    for name in ("sequential", "vectorized"):
        task = task_of(ZOO[model])
        algorithm = CATALOGUE["qfedavg"].builder(**CATALOGUE["qfedavg"].example)
        config = {"learning-rate": 0.1, **algorithm.client_config}
        order = order_of(task, MessageType.TRAIN, config)
        begun = algorithm.init(params_of_module(build_module(task, 5)))
        order.content["arrays"] = params_to_arrays(algorithm.sent(begun))
        found.append(updates_of(executor_of(name, task, reasons).execute(order)))
    assert_alike(found[1], found[0])
    assert not reasons


@pytest.mark.parametrize("model", ZOO)
def test_the_same_round_twice_gives_the_same_bits(model: str) -> None:
    """Random numbers come from the clients' seeds, and from nowhere else."""
    torch.rand(1)  # the global generator is somewhere else
    found, again = run("vectorized", model)[0], run("vectorized", model, time=2)[0]
    for client, (params, _) in found.items():
        for name, values in params.items():
            assert again[client][0][name].tobytes() == values.tobytes(), (client, name)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("model", ZOO)
def test_clients_stay_apart(model: str, executor: str) -> None:
    """Another client's data change that client's update alone."""
    before, after = run(executor, model)[0], run(executor, model, poked=2)[0]
    for client, (params, _) in before.items():
        close = [
            np.allclose(after[client][0][name], values, rtol=1e-6, atol=1e-7)
            for name, values in params.items()
        ]
        assert all(close) == (client != 3), client


@pytest.mark.parametrize("model", ZOO)
def test_every_model_is_evaluated_as_alone(model: str) -> None:
    """Each client's loss and metrics are those of sequential."""
    expected, _ = run("sequential", model, kind=MessageType.EVALUATE)
    found, _ = run("vectorized", model, kind=MessageType.EVALUATE)
    assert_measured_alike(found, expected)


def assert_measured_alike(found: Updates, expected: Updates) -> None:
    for client, (_, metrics) in expected.items():
        for key, value in metrics.items():
            (measured,) = np.ravel(columns_of(found[client][1])[key])
            assert measured == pytest.approx(value, rel=1e-4, abs=1e-6), (client, key)


def own_generator() -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    return of_two(lambda m, x: m.b(m.a(x) + torch.rand(12, generator=generator)))


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE])
def test_a_generator_that_no_module_holds_is_drawn_from_by_clients_alone(kind: str) -> None:
    """What is traced and tried takes nothing from it; clients have their turns in the usual order."""
    habit = Habit(build=own_generator)
    made = {}
    for name in ("sequential", "vectorized"):
        replies = executor_of(name, task_of(habit), []).execute(order_of(task_of(habit), kind, {}))
        made[name] = {
            reply.metadata.src_node_id: columns_of(dict(reply.content["metrics"]))["loss"]
            for reply in replies
        }
    for client, loss in made["sequential"].items():
        assert np.ravel(made["vectorized"][client]) == pytest.approx(np.ravel(loss), rel=1e-6)


def columns_of(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of a reply that stands for one client, by name."""
    listed = columns_in(MetricRecord(metrics)) if "combined-clients" in metrics else {}
    return {**metrics, **listed}
