"""`SimulationGrid`: a Flower Grid whose clients live in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from meadow.flower.messages import identify_process
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients

identify_process(run_id=1, node_id=0)

app = ClientApp()


@app.query()
def echo(message: Message, context: Context) -> Message:
    """Answer with what was asked, who answers, and how often it did before."""
    calls = context.state.metric_records.get("calls", MetricRecord({"count": 0}))
    context.state["calls"] = MetricRecord({"count": calls["count"] + 1})  # type: ignore[operator]
    context.state["memory"] = ArrayRecord([np.full(3, context.node_id, np.float32)])
    if "fail" in message.content:
        raise ValueError("the site is closed")
    answer = MetricRecord(
        {
            "node": context.node_id,
            "index": int(str(context.node_config["partition-id"])),
            "count": int(str(context.node_config["num-partitions"])),
            "calls": calls["count"],
        }
    )
    return Message(RecordDict({"answer": answer, **message.content}), reply_to=message)


def grid_of(
    client_app: ClientApp,
    *,
    count: int = 3,
    rate: float = 0.5,
    sink: EventSink | None = None,
    states_file: Path | None = None,
) -> tuple[SimulationGrid, SimulatedClients]:
    """Return a grid over the sequential executor, and its clients."""
    clients = SimulatedClients(count, run_id=1, run_config={"rate": rate}, states_file=states_file)
    return SimulationGrid(SequentialExecutor(client_app, clients, sink=sink), clients), clients


@pytest.fixture
def grid() -> SimulationGrid:
    """Three clients."""
    return grid_of(app)[0]


def ask(*nodes: int, **records: Any) -> list[Message]:
    return [Message(RecordDict(records), node, "query", group_id="7") for node in nodes]


def answers(grid: Grid, messages: list[Message]) -> list[dict[str, Any]]:
    return [dict(reply.content["answer"]) for reply in grid.send_and_receive(messages)]


def test_clients_are_numbered_from_one(grid: SimulationGrid) -> None:
    """Node ids are 1 to n, and each client knows its place by Flower's names."""
    assert list(grid.get_node_ids()) == [1, 2, 3]
    got = answers(grid, ask(3, 1))
    assert [(a["node"], a["index"], a["count"]) for a in got] == [(3, 2, 3), (1, 0, 3)]


def test_replies_belong_to_their_messages(grid: SimulationGrid) -> None:
    """A reply names its message, its sender and its group, and has an id of its own."""
    messages = ask(2, 3)
    replies = list(grid.send_and_receive(messages))
    for message, reply in zip(messages, replies, strict=True):
        assert reply.metadata.reply_to_message_id == message.metadata.message_id != ""
        assert reply.metadata.src_node_id == message.metadata.dst_node_id
        assert reply.metadata.group_id == "7"
    assert len({m.metadata.message_id for m in [*messages, *replies]}) == 4


def test_clients_work_when_their_reply_is_asked_for() -> None:
    """Replies stream: no more of them exist than the strategy has taken."""
    grid, clients = grid_of(app)
    replies = grid.send_and_receive(ask(1, 2, 3))
    next(iter(replies))
    assert [bool(clients.context_of(node).state) for node in (1, 2, 3)] == [True, False, False]


def test_a_client_keeps_its_state(grid: SimulationGrid) -> None:
    """What a client remembers is its own, from message to message."""
    for calls in range(3):
        assert [a["calls"] for a in answers(grid, ask(1))] == [calls]
    assert [a["calls"] for a in answers(grid, ask(2))] == [0]


def test_an_exception_is_an_error_reply(grid: SimulationGrid) -> None:
    """The reason reaches the server; what the failed message did to the state does not last."""
    told: list[tuple[int, str]] = []
    grid, _ = grid_of(app, sink=EventSink(traceback=lambda *seen: told.append(seen)))
    (reply,) = grid.send_and_receive(ask(2, fail=ConfigRecord()))
    assert reply.has_error()
    assert reply.error.reason == "ValueError: the site is closed"
    assert reply.metadata.src_node_id == 2
    assert told[0][0] == 2 and "in echo" in told[0][1]
    assert [a["calls"] for a in answers(grid, ask(2))] == [0]


def test_a_client_that_is_not_there_is_an_error_reply(grid: SimulationGrid) -> None:
    """A message to an unknown node does not end the run."""
    (reply,) = grid.send_and_receive(ask(9))
    assert reply.has_error() and "there is no client 9" in str(reply.error.reason)


def test_push_and_pull(grid: SimulationGrid) -> None:
    """Flower's two steps work too, in any order, and give each reply once."""
    first, second = grid.push_messages(ask(1, 2))
    (reply,) = grid.pull_messages([second])
    assert reply.metadata.src_node_id == 2
    replies = list(grid.pull_messages([first, second, "unknown"]))
    assert [reply.metadata.src_node_id for reply in replies] == [1]


def test_bytes_of_tensors_are_counted(grid: SimulationGrid) -> None:
    """Three clients get and return 100 float32: 1,200 bytes each way, and Flower's .npy header."""
    record = ArrayRecord([np.zeros(100, np.float32)])
    list(grid.send_and_receive(ask(1, 2, 3, model=record)))
    size = sum(len(array.data) for array in record.values())
    assert (grid.bytes_sent, grid.bytes_received) == (3 * size, 3 * size)


def test_states_survive_the_grid(tmp_path: Path) -> None:
    """Saved and loaded states continue where they were, arrays included."""
    states_file = tmp_path / "clients.sqlite"
    grid, clients = grid_of(app, states_file=states_file)
    answers(grid, ask(1, 3, 3))
    saved = clients.save()
    answers(grid, ask(1, 2))
    clients.close()
    other, clients = grid_of(app, states_file=states_file)
    clients.load(saved)
    (memory,) = clients.context_of(3).state.array_records["memory"].to_numpy_ndarrays()
    assert memory.tolist() == [3, 3, 3]
    assert [a["calls"] for a in answers(other, ask(1, 2, 3))] == [1, 0, 2]
    clients.close()


def test_clients_without_state_cost_no_file(tmp_path: Path) -> None:
    """A task that remembers nothing leaves nothing in the checkpoints."""
    plain = ClientApp()

    @plain.query()
    def silent(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    grid, clients = grid_of(plain, count=2, states_file=tmp_path / "clients.sqlite")
    list(grid.send_and_receive(ask(1, 2)))
    assert clients.save() == {}
    assert list(tmp_path.iterdir()) == []


def test_a_stop_is_asked_for_once(grid: SimulationGrid) -> None:
    """The strategy looks between rounds."""
    assert not grid.is_stopping()
    grid.stop()
    assert grid.is_stopping()


def test_clients_do_not_share_what_they_are_sent() -> None:
    """A client that writes into its message changes nothing for the next one."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config = message.content.config_records["config"]
        seen = int(config.get("seen", 0))  # type: ignore[arg-type]
        config["seen"] = seen + 1
        content = RecordDict({"metrics": MetricRecord({"num-examples": 1, "seen": seen})})
        return Message(content, reply_to=message)

    grid, _ = grid_of(app, count=2)
    shared = RecordDict({"config": ConfigRecord({"round": 1})})
    replies = grid.send_and_receive([Message(shared, node, "train") for node in (1, 2)])
    assert [r.content.metric_records["metrics"]["seen"] for r in replies] == [0, 0]
