"""Who is run with whom when answers are asked for a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from meadow.flower.messages import identify_process
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.rounds.broadcast import Broadcast

identify_process(run_id=1, node_id=0)


class Counting:
    """An executor that remembers which clients it ran together."""

    combines = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.ran: list[list[int]] = []

    def execute(self, messages: Sequence[Message]) -> Iterator[Message]:
        self.ran.append([message.metadata.dst_node_id for message in messages])
        assert isinstance(messages, Broadcast) == (self.name != "sequential")
        for message in messages:
            told = message.content["config"]["version"]
            content = RecordDict({"metrics": MetricRecord({"version": told})})
            yield Message(content, reply_to=message)

    def close(self) -> None:
        """Nothing is held."""


def grid_of(name: str) -> tuple[SimulationGrid, Counting]:
    executor = Counting(name)
    return SimulationGrid(executor, SimulatedClients(9, run_id=1, run_config={})), executor


def push(grid: SimulationGrid, version: int, *clients: int) -> list[str]:
    content = RecordDict({"config": ConfigRecord({"version": version})})
    made = [Message(content, client, "train", group_id=f"i{client}") for client in clients]
    return list(grid.push_messages(made))


@pytest.mark.parametrize(
    ("name", "ran"), [("sequential", [[1], [2], [3], [4]]), ("vectorized", [[1, 2, 3], [4]])]
)
def test_clients_with_the_same_params_are_run_together(name: str, ran: list[list[int]]) -> None:
    """Once, when the first is asked for; each answer is the one to its own message."""
    grid, executor = grid_of(name)
    ids = [*push(grid, 7, 1, 2, 3), *push(grid, 8, 4)]
    for client, id_ in enumerate(ids, start=1):
        (reply,) = grid.pull_messages([id_])
        assert reply.metadata.reply_to_message_id == id_
        assert (reply.metadata.src_node_id, reply.metadata.group_id) == (client, f"i{client}")
        assert reply.content["metrics"]["version"] == (8 if client == 4 else 7)
    assert executor.ran == ran
    assert list(grid.pull_messages(ids)) == []


def test_a_client_that_owes_more_is_run_in_turn() -> None:
    """Its second message may depend on what it keeps after the first."""
    grid, executor = grid_of("vectorized")
    ids = [*push(grid, 7, 1, 2), *push(grid, 8, 2)]
    for id_ in ids:
        assert len(list(grid.pull_messages([id_]))) == 1
    assert executor.ran == [[1], [2], [2]]


def test_what_is_forgotten_is_not_run() -> None:
    """Nor kept, if it was."""
    grid, executor = grid_of("vectorized")
    first, second, third = push(grid, 7, 1, 2, 3)
    grid.forget("i2")
    assert len(list(grid.pull_messages([first]))) == 1
    assert executor.ran == [[1, 3]]
    grid.forget("i3")
    assert list(grid.pull_messages([second, third])) == []
