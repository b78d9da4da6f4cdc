"""The contract: what every executor does, whatever it runs clients on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from flwr.app import Message

from meadow.apps.folder import App
from meadow.simulations.executors.apps import client_app_of
from meadow.simulations.executors.contract import EventSink, Executor
from meadow.simulations.executors.processes.executor import ProcessesExecutor
from meadow.simulations.executors.ray.executor import RayExecutor
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.strategies.algorithms.combined import clients_of

from .arena import CLIENTS, FAILS, Arena, same_bits, values_of

EVERYBODY = list(range(1, CLIENTS + 1))
told: list[tuple[int, str]] = []


def sink_of(arena: Arena) -> EventSink:
    return EventSink(
        traceback=lambda node_id, text: told.append((node_id, text)), explain=arena.app.explain
    )


def sequential(arena: Arena) -> Executor:
    return SequentialExecutor(client_app_of(arena.app), arena.clients, sink=sink_of(arena))


def processes(arena: Arena) -> Executor:
    return ProcessesExecutor(arena.app, arena.clients, workers=2, combine=True, sink=sink_of(arena))


def ray(arena: Arena) -> Executor:
    return RayExecutor(
        arena.app, arena.clients, address=None, workers=2, combine=True, sink=sink_of(arena)
    )


Stage = tuple[Arena, Executor]


@pytest.fixture(scope="module", params=[sequential, processes, ray], ids=lambda make: make.__name__)
def stage(app: App, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """An arena with an executor of each kind."""
    if request.param is ray:
        request.getfixturevalue("ray_cluster")
    arena = Arena.of(app)
    executor = request.param(arena)
    yield arena, executor
    executor.close()
    arena.clients.close()


@pytest.fixture(scope="module")
def reference(app: App) -> Iterator[Stage]:
    """The sequential executor, with clients of its own."""
    arena = Arena.of(app)
    yield arena, sequential(arena)
    arena.clients.close()


def answered(replies: Sequence[Message]) -> list[int]:
    return sorted(client for reply in replies for client in clients_of(reply))


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("nodes", [EVERYBODY, [2, 9], [7], []])
def test_every_message_is_answered_once(stage: Stage, kind: str, nodes: list[int]) -> None:
    """By a reply of its own or by one that stands for it; none is answered twice."""
    arena, executor = stage
    replies = list(executor.execute(arena.broadcast(kind, nodes)))
    assert answered(replies) == nodes
    assert all(reply.metadata.group_id == "1" for reply in replies)
    if not executor.combines or kind == "evaluate":
        assert len(replies) == len(nodes)


def test_what_a_client_raises_is_an_error_reply(stage: Stage) -> None:
    """The reason and the traceback reach the run; the others' updates count."""
    arena, executor = stage
    told.clear()
    replies = list(executor.execute(arena.broadcast("train")))
    (failed,) = [reply for reply in replies if reply.has_error()]
    assert failed.metadata.src_node_id == FAILS
    assert "the disk is gone" in str(failed.error.reason)
    assert [node for node, text in told if "in load" in text] == [FAILS]


def test_a_client_that_is_not_there_is_an_error_reply(stage: Stage) -> None:
    """A message to an unknown node does not end the run."""
    arena, executor = stage
    replies = list(executor.execute(arena.broadcast("train", [2, 99])))
    (failed,) = [reply for reply in replies if reply.has_error()]
    assert failed.metadata.src_node_id == 99 and "there is no client 99" in str(failed.error.reason)


def test_the_aggregate_is_the_reference_one(stage: Stage, reference: Stage) -> None:
    """Also where updates are added up on the way: unequal weights, integer buffers and all."""
    arena, executor = stage
    expected = reference[0].aggregate(list(reference[1].execute(reference[0].broadcast("train"))))
    found = arena.aggregate(list(executor.execute(arena.broadcast("train"))))
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-9)
    assert expected["1.num_batches_tracked"] == found["1.num_batches_tracked"]
    if executor.name in ("processes", "ray"):
        assert same_bits(found, expected)


def test_the_same_instruction_gives_the_same_bits(stage: Stage) -> None:
    """Whoever worked on what, and when."""
    arena, executor = stage
    once, again = (
        arena.aggregate(list(executor.execute(arena.broadcast("train")))) for _ in range(2)
    )
    assert same_bits(once, again)


def test_what_clients_report_is_complete(stage: Stage, reference: Stage) -> None:
    """The mean loss and the number of examples are those of the single replies."""
    arena, executor = stage
    replies = [r for r in executor.execute(arena.broadcast("train")) if r.has_content()]
    expected = values_of(list(reference[1].execute(reference[0].broadcast("train"))))
    examples = {node: said["num-examples"] for node, said in expected.items() if node != FAILS}
    weights = [float(str(r.content.metric_records["metrics"]["num-examples"])) for r in replies]
    losses = [float(str(r.content.metric_records["metrics"]["loss"])) for r in replies]
    assert sum(weights) == sum(examples.values())
    mean = sum(expected[node]["loss"] * count for node, count in examples.items())
    assert np.dot(weights, losses) == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_single_replies_are_the_reference_ones(stage: Stage, reference: Stage, kind: str) -> None:
    """To the bit, where nobody adds up: a list of messages, as other strategies send."""
    arena, executor = stage
    messages = list(arena.broadcast(kind))
    replies = list(executor.execute(messages))
    assert len(replies) == CLIENTS
    expected = values_of(list(reference[1].execute(list(reference[0].broadcast(kind)))))
    found = values_of(replies)
    for said in [*found.values(), *expected.values()]:
        said.pop("calls", None)
    assert found == expected


def test_clients_keep_their_states(stage: Stage) -> None:
    """Each its own, from message to message, wherever they run; a failed one keeps the old."""
    arena, executor = stage
    before = arena.calls()
    list(executor.execute(arena.broadcast("train", [1, 3, FAILS])))
    list(executor.execute(arena.broadcast("train", [3, FAILS, 5])))
    grown = [after - count for after, count in zip(arena.calls(), before, strict=True)]
    assert grown == [1, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0]
    state = arena.clients.context_of(3).state
    (memory,) = state.array_records["memory"].to_numpy_ndarrays()
    assert memory.tolist() == [3 * (arena.calls()[2] - 1)] * 3


def test_two_messages_to_one_client_follow_each_other(stage: Stage) -> None:
    """The second one finds what the first one left."""
    arena, executor = stage
    before = arena.calls()[5]
    replies = list(executor.execute(list(arena.broadcast("train", [6, 6]))))
    calls = [reply.content.metric_records["metrics"]["calls"] for reply in replies]
    assert calls == [before, before + 1]


def test_a_round_may_be_left_early(stage: Stage) -> None:
    """What was not asked for is not missed; the next round is whole."""
    arena, executor = stage
    replies = executor.execute(arena.broadcast("evaluate"))
    next(replies)
    replies.close()  # type: ignore[attr-defined]
    assert answered(list(executor.execute(arena.broadcast("evaluate")))) == EVERYBODY
