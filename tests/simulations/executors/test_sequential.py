"""Small clients of a task train together; nobody can tell by what they answer or keep."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.clientapp import ClientApp
from torch import nn

import meadow
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.simulations.executors import sequential
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.algorithms.catalogue import CATALOGUE
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.broadcast import Broadcast, instruction_for_all
from meadow.strategies.rounds.plan import RoundPlan
from meadow.training.local.session import CLIENT_STATE
from meadow.training.module_params import build_module, params_of_module

identify_process(run_id=1, node_id=0)

CLIENTS = 6
SIZES = (23, 5, 14, 10, 30, 7)
FAILS = 4
"""The client whose data cannot be loaded."""


class Net(nn.Module):
    """Dropout, numbers of all three global generators, a norm's buffers, and an attribute that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.out = nn.Linear(8, 3)
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        noise = random.random() + np.random.standard_normal()
        hidden = self.drop(self.norm(torch.tanh(self.first(inputs))))
        result: torch.Tensor = self.out(hidden) * (1 + 0.1 * noise / self.calls)
        return result


def load(site: meadow.Site) -> meadow.ClientData:
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(SIZES[site.index], 6, generator=generator)
    return meadow.ClientData(train=(inputs, inputs.argmax(1) % 3))


TASK = meadow.Task(model=Net, loss=meadow.cross_entropy, client_data=load)


def called(app: ClientApp) -> ClientApp:
    """Return anybody's ClientApp, as far as an executor knows, that does what `app` does."""
    made = ClientApp()

    @made.train()
    def train(message: Message, context: Context) -> Message:
        return app(message, context)

    @made.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return app(message, context)

    return made


def instruction(task: meadow.Task, nodes: list[int], **config: Any) -> Broadcast:
    arrays = params_to_arrays(params_of_module(build_module(task, 5)))
    said = ConfigRecord({"batch-size": 10, "learning-rate": 0.1, "seed": 5, **config})
    return instruction_for_all(MessageType.TRAIN, 1, nodes, arrays, said, {})


def values_of(reply: Message) -> Any:
    """Return all that a reply says."""
    if reply.has_error():
        return reply.metadata.src_node_id, reply.error.code, reply.error.reason
    (arrays,), (metrics,) = (
        reply.content.array_records.values(),
        reply.content.metric_records.values(),
    )
    params = {name: array.tobytes() for name, array in arrays_to_params(arrays).items()}
    return reply.metadata.src_node_id, reply.metadata.reply_to_message_id, dict(metrics), params


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "epochs": {"epochs": 3},
    "momentum": {"momentum": 0.9},
    "adam": {"optimizer": "adam"},
    "accumulated": {"accumulation-steps": 2, "gradient-clip-norm": 0.1},
    "proximal": {"proximal-mu": 0.5},
}


def both(
    task: meadow.Task = TASK, make: Callable[[meadow.Task], ClientApp] | None = None
) -> Iterator[tuple[SequentialExecutor, SimulatedClients]]:
    """Yield an executor that knows the task, and one that can only call its ClientApp."""
    for wrap in (lambda app: app, called):
        clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
        yield SequentialExecutor(wrap(meadow.client_app(task, device="cpu")), clients), clients


@pytest.mark.parametrize("case", CASES)
def test_replies_are_those_of_a_call(case: str) -> None:
    """To the bit: params, metrics and message ids."""
    found = [
        [
            values_of(reply)
            for reply in executor.execute(instruction(TASK, [3, 1, 6, 2], **CASES[case]))
        ]
        for executor, _ in both()
    ]
    assert found[0] == found[1]
    assert [said[0] for said in found[0]] == [3, 1, 6, 2]


def outcome(
    executor: SequentialExecutor, clients: SimulatedClients, name: str
) -> tuple[dict[str, bytes], list[bytes | None]]:
    """Run three rounds of an algorithm; return the params and what clients keep."""
    strategy = FederatedStrategy(
        CATALOGUE[name].builder(**CATALOGUE[name].example), RoundPlan(cohort=4, seed=1)
    )
    initial = params_to_arrays(params_of_module(build_module(TASK, 5)))
    config = ConfigRecord({"batch-size": 10, "learning-rate": 0.1, "seed": 5, "epochs": 2})
    result = strategy.start(SimulationGrid(executor, clients), initial, 3, train_config=config)
    params = {name: array.tobytes() for name, array in arrays_to_params(result.arrays).items()}
    states = [clients.packed_state(node) for node in range(1, CLIENTS + 1)]
    return params, states


@pytest.mark.parametrize(
    "name", [n for n, each in CATALOGUE.items() if each.together and each.optimizer != "none"]
)
def test_algorithms_end_as_with_calls(name: str) -> None:
    """Also those whose clients keep something, or send more than params."""
    first, second = (outcome(executor, clients, name) for executor, clients in both())
    assert first == second


def test_the_same_client_twice_finds_what_it_left() -> None:
    """Though both messages are read before either is followed."""
    keeps = replace(
        TASK, algorithm=lambda name, arguments: meadow.averaging("counts", client=Counts())
    )
    for executor, clients in both(keeps):
        asked = instruction(keeps, [2, 5, 2, 2], algorithm=f"{__name__}:counts")
        assert all(reply.has_content() for reply in executor.execute(list(asked)))
        counts = [arrays_to_params(clients.context_of(node).state[CLIENT_STATE]) for node in (2, 5)]
        assert [float(each["count"]) for each in counts] == [3, 1]


class Counts(meadow.LocalAlgorithm):
    """Clients count how often they have trained."""

    state = {"count": ()}  # noqa: RUF012

    def answer(self, end: meadow.LocalRound) -> meadow.Answer:
        return meadow.Answer(
            params=end.trained, client_state={"count": end.client_state["count"] + 1}
        )


def test_a_client_that_fails_leaves_the_others_alone() -> None:
    """When its data are loaded, when its training diverges, or when there is no such client."""

    def some(site: meadow.Site) -> meadow.ClientData:
        if site.index + 1 == FAILS:
            raise OSError("the disk is gone")
        inputs, targets = load(site).train
        return meadow.ClientData(train=(inputs * (float("nan") if site.index == 0 else 1), targets))

    task, told = replace(TASK, client_data=some), list[int]()
    found = []
    for wrap in (lambda app: app, called):
        clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
        sink = EventSink(traceback=lambda node, text: told.append(node))
        executor = SequentialExecutor(
            wrap(meadow.client_app(task, device="cpu")), clients, sink=sink
        )
        found.append(
            [values_of(r) for r in executor.execute(instruction(task, [2, 1, 99, FAILS, 5]))]
        )
    assert found[0] == found[1]
    assert [len(said) for said in found[0]] == [4, 3, 3, 3, 4]
    assert sorted(told) == sorted([1, 99, FAILS] * 2)


def test_an_app_with_a_lifespan_is_called() -> None:
    """What somebody adds to a task's ClientApp runs around every client."""
    app, seen = meadow.client_app(TASK, device="cpu"), []

    @app.lifespan()
    def within(context: Context) -> Iterator[None]:
        seen.append(context.node_id)
        yield

    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    replies = list(SequentialExecutor(app, clients).execute(instruction(TASK, [2, 3])))
    assert seen == [2, 3] and all(reply.has_content() for reply in replies)


@contextmanager
def watched(
    monkeypatch: pytest.MonkeyPatch, a_step_s: float, model: Callable[[], nn.Module] = Net
) -> Iterator[tuple[SequentialExecutor, meadow.Task, dict[int, float]]]:
    """Let the executor's clock go on by so much a step; and note what it says each client took."""
    clock, took = SimpleNamespace(now_s=0.0), dict[int, float]()
    clock.perf_counter = lambda: clock.now_s
    monkeypatch.setattr(sequential, "time", clock)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        clock.now_s += a_step_s
        return meadow.cross_entropy(outputs, targets)

    task = replace(TASK, loss=loss, model=model)
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    sink = EventSink(took=took.__setitem__)
    yield SequentialExecutor(meadow.client_app(task, device="cpu"), clients, sink=sink), task, took


def test_each_client_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By which workers share clients out, although replies come together."""
    with watched(monkeypatch, 0.001) as (executor, task, took):
        list(executor.execute(instruction(task, [1, 2, 3, 4])))
    assert took == pytest.approx({1: 0.003, 2: 0.001, 3: 0.002, 4: 0.001})


def test_slow_clients_are_handed_over_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reply waits long for the next one."""
    with watched(monkeypatch, 1.0) as (executor, task, took):
        for count, _ in enumerate(executor.execute(instruction(task, [1, 2, 3, 4])), start=1):
            assert len(took) == count


def test_large_params_are_handed_over_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more replies exist than the strategy has taken."""

    def large() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 1 << 15), nn.Linear(1 << 15, 3))

    with watched(monkeypatch, 0.0, large) as (executor, task, took):
        for count, _ in enumerate(executor.execute(instruction(task, [1, 2, 3, 4])), start=1):
            assert len(took) == count


def test_small_clients_are_handed_over_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the gain comes from."""
    with watched(monkeypatch, 0.0) as (executor, task, took):
        next(executor.execute(instruction(task, [1, 2, 3, 4])))
    assert [*took] == [1, 2, 3, 4]


def test_global_generators_go_on_between_clients() -> None:
    """What code outside of a training draws does not depend on the clients before it."""
    drawn = []

    def drawing(site: meadow.Site) -> meadow.ClientData:
        drawn.append((random.random(), np.random.standard_normal(), float(torch.rand(()))))
        return load(site)

    for rounds in ([[1, 2], [1, 2, 3], [2, 4, 1]], [[5, 6], [5, 6, 3], [6, 4]]):
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
        app = meadow.client_app(replace(TASK, client_data=drawing), device="cpu")
        executor = SequentialExecutor(app, clients)
        for nodes in rounds:  # some have their data already, and some load them in between
            list(executor.execute(instruction(TASK, nodes)))
    assert drawn[:4] == drawn[4:]


class Noisy(meadow.LocalAlgorithm):
    """Clients draw as they answer, outside of their training's block."""

    state = {"drawn": ()}  # noqa: RUF012

    def answer(self, end: meadow.LocalRound) -> meadow.Answer:
        drawn = torch.rand(()) + random.random() + np.random.standard_normal()
        return meadow.Answer(params=end.trained, client_state={"drawn": drawn.float()})


def drawn_outside() -> list[float]:
    """Return numbers that code outside of a training draws; the second ones of pairs count too."""
    found = [random.gauss(0, 1), random.random(), float(torch.randn(()))]
    return found + [float(np.random.standard_normal()) for _ in range(3)]


def seed_outside() -> None:
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    random.gauss(0, 1), np.random.standard_normal()


@pytest.mark.parametrize("fails", [None, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("own", [False, True])
def test_global_generators_are_left_as_they_were(
    own: bool, fails: type[BaseException] | None
) -> None:
    """By clients that have their data already, and are trained one right after another; also where a
    training fails or is interrupted. What an algorithm's own code draws goes on from client to client."""
    fail = False

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if fail and fails is not None and targets.shape[0] == SIZES[1]:
            raise fails
        return meadow.cross_entropy(outputs, targets)

    task, config = replace(TASK, loss=loss), dict[str, Any]()
    if own:
        noisy = meadow.averaging("noisy", client=Noisy())
        task = replace(task, algorithm=lambda name, arguments: noisy)
        config = {"algorithm": f"{__name__}:noisy"}
    found = []
    for executor, clients in both(task):
        seed_outside()
        fail, states, told = False, list[Any](), list[Any]()
        list(executor.execute(instruction(task, [1, 2, 3], **config)))
        fail = True
        seed_outside()
        with suppress(KeyboardInterrupt):
            for reply in executor.execute(instruction(task, [1, 3, 2], **config)):
                told.append(values_of(reply))
        drawn = drawn_outside()
        if fails is not KeyboardInterrupt:  # which loses the replies of the last moment
            states = [told, *(clients.packed_state(node) for node in (1, 2, 3))]
        found.append((drawn, states))
    if fails is not KeyboardInterrupt:
        assert found[0] == found[1]
    if not own:
        seed_outside()
        assert found[0][0] == found[1][0] == drawn_outside()


def test_replies_in_the_modules_memory_come_one_by_one() -> None:
    """They are good until the next client trains."""
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    executor = SequentialExecutor(meadow.client_app(TASK, device="cpu", copies=False), clients)
    found = [values_of(reply) for reply in executor.execute(instruction(TASK, [3, 1, 6]))]
    executor, _ = next(both())
    assert found == [values_of(reply) for reply in executor.execute(instruction(TASK, [3, 1, 6]))]


def test_what_a_client_does_to_its_instruction_stays_with_it() -> None:
    """An own algorithm is given the config, as clients are sent it together."""
    broadcast = instruction(TASK, [1, 2, 3])
    app: Any = meadow.client_app(TASK, device="cpu")
    seen, begin = list[dict[str, Any]](), app.begin

    def changing(message: Message, context: Context) -> Any:
        training = begin(message, context)
        seen.append(dict(training._given.config))
        training._given.config["own"] = context.node_id
        return training

    app.begin = changing
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    list(SequentialExecutor(app, clients).execute(broadcast))
    assert seen[0] == seen[1] == seen[2] and "own" not in broadcast.content["config"]


def test_data_are_loaded_when_their_client_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not beforehand for all: that takes time, which counts, and threads, which the executor has set."""
    seen = []

    def slow(site: meadow.Site) -> meadow.ClientData:
        sequential.time.now_s += 1.0  # type: ignore[attr-defined]
        seen.append((site.index + 1, torch.get_num_threads()))
        return load(site)

    before = torch.get_num_threads()
    with watched(monkeypatch, 0.0) as (_, task, took):
        clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
        app = meadow.client_app(replace(task, client_data=slow), device="cpu")
        sink = EventSink(took=took.__setitem__)
        executor = SequentialExecutor(app, clients, threads=before + 1, sink=sink)
        for nodes in ([1, 2, 3], [3, 2]):
            for count, _ in enumerate(executor.execute(instruction(task, nodes)), start=1):
                assert nodes[0] == 3 or (seen == [(n, before + 1) for n in nodes[:count]])
                assert nodes[0] == 3 or took == dict.fromkeys(nodes[:count], 1.0)
    assert took == {1: 1.0, 2: 0.0, 3: 0.0} and torch.get_num_threads() == before


def test_an_app_that_forgets_to_answer_is_told() -> None:
    """What is wrong, and with which client."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return None  # type: ignore[return-value]

    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    (reply,) = SequentialExecutor(app, clients).execute(instruction(TASK, [2]))
    assert reply.metadata.src_node_id == 2
    assert "answered with a NoneType, not with a Message" in str(reply.error.reason)
