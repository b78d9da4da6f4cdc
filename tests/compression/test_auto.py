"""`auto`: who gets compressed messages in a cohort of slow and fast lines, and who is told of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from meadow.compression.client import compressed_app
from meadow.compression.grid import LISTED_MAX, CompressionGrid
from meadow.compression.packet import is_packed
from meadow.compression.terms import RECORD, CompressionTerms
from meadow.errors import ProtocolError
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.rounds.broadcast import Broadcast

identify_process(run_id=1, node_id=0)

BOTH = CompressionTerms(upload="auto", download="auto", seed=3)
PARAMS = {"w": np.linspace(-1, 1, 3000, dtype=np.float32), "seen": np.asarray(7)}
ARRAYS = params_to_arrays(PARAMS)


class MovingApp(ClientApp):
    """Adds the client's number to every param."""

    def __call__(self, message: Message, context: Context) -> Message:
        content = RecordDict({"metrics": MetricRecord({"num-examples": 1})})
        if message.metadata.message_type == "train":
            params = arrays_to_params(message.content["arrays"])
            moved = {
                name: np.asarray(old + context.node_id).astype(old.dtype)
                for name, old in params.items()
            }
            content["arrays"] = params_to_arrays(moved)
        return Message(content, reply_to=message)


class Lines(SimulationGrid):
    """A grid of clients with lines, which keeps what went over them."""

    def __init__(
        self, slow_lines: dict[int, int], begun: Sequence[str] = (), clients: int = 3
    ) -> None:
        there = SimulatedClients(clients, run_id=1, run_config={})
        super().__init__(SequentialExecutor(compressed_app(MovingApp()), there), there)
        self.slow_lines, self._begun = slow_lines, begun
        self.asked: list[RecordDict] = []
        self.answered: list[RecordDict] = []

    def cohort_of(self, group_id: str) -> Sequence[int]:
        return [1, 2, 3] if group_id in self._begun else []

    def name_of(self, client: int) -> str | None:
        return None if client == 3 else f"site-{client}"

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        batch = list(messages)
        self.cohort = [message.metadata.dst_node_id for message in batch]
        self.asked = [RecordDict(dict(message.content)) for message in batch]
        self.instructions = len({id(message.content) for message in batch})
        replies = list(super().send_and_receive(batch, timeout=timeout))
        by_client = {reply.metadata.src_node_id: reply.content for reply in replies}
        self.answered = [RecordDict(dict(by_client[client])) for client in self.cohort]
        return replies


def ask(
    grid: CompressionGrid,
    clients: Sequence[int] = (3, 1, 2),
    *,
    kind: str = "train",
    round: str = "1",
) -> dict[int, Message]:
    """Send an instruction and return the replies by client."""
    batch = Broadcast(RecordDict({"arrays": ARRAYS}), kind, clients, group_id=round)
    return {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(batch)}


def compressed(contents: Sequence[RecordDict]) -> list[bool]:
    """Whether the params in these messages are compressed."""
    found = [content.get("arrays") for content in contents]
    return [isinstance(arrays, ArrayRecord) and is_packed(arrays) for arrays in found]


def test_each_client_gets_what_its_line_needs() -> None:
    """In one step and in the cohort's order; fast lines get the very message of a run without compression."""
    lines = Lines({1: 2_500_000})
    replies = ask(CompressionGrid(lines, BOTH))
    assert lines.cohort == [3, 1, 2]
    assert compressed(lines.asked) == compressed(lines.answered) == [False, True, False]
    assert set(lines.asked[0]) == {"arrays"}
    assert lines.asked[0]["arrays"] is ARRAYS
    terms = CompressionTerms.read(lines.asked[1][RECORD])
    assert (terms.upload, terms.download) == ("int8", "int8")
    for client in (2, 3):
        np.testing.assert_array_equal(
            arrays_to_params(replies[client].content["arrays"])["w"],
            PARAMS["w"] + np.float32(client),
        )
    slow = arrays_to_params(replies[1].content["arrays"])
    np.testing.assert_allclose(slow["w"], PARAMS["w"] + 1, atol=0.02)
    assert slow["seen"] == 8


@pytest.mark.parametrize(
    ("terms", "down", "up"),
    [
        (CompressionTerms(upload="auto"), [False] * 3, [False, True, False]),
        (CompressionTerms(upload="none", download="auto"), [False, True, False], [False] * 3),
        (CompressionTerms(upload="auto", download="int8"), [True] * 3, [False, True, False]),
    ],
)
def test_each_way_is_chosen_for_itself(
    terms: CompressionTerms, down: list[bool], up: list[bool]
) -> None:
    """A fixed codec stays what it is, both for slow and for fast lines."""
    lines = Lines({1: 2_500_000})
    ask(CompressionGrid(lines, terms))
    assert (compressed(lines.asked), compressed(lines.answered)) == (down, up)


@pytest.mark.parametrize("slow", [{}, {1: 9, 2: 9, 3: 9, 4: 9}])
def test_a_cohort_of_equal_lines_gets_one_instruction(slow: dict[int, int]) -> None:
    """As without `auto`; and a grid that knows no lines has none that are slow."""
    lines = Lines(slow)
    ask(CompressionGrid(lines, BOTH))
    assert lines.instructions == 1
    assert compressed(lines.asked) == compressed(lines.answered) == [bool(slow)] * 3
    if not slow:
        del lines.slow_lines
        ask(CompressionGrid(lines, BOTH))
        assert compressed(lines.asked) == [False] * 3


def test_an_evaluation_is_compressed_on_its_way_down() -> None:
    """Its replies have no params."""
    lines = Lines({2: 9})
    replies = ask(CompressionGrid(lines, BOTH), kind="evaluate")
    assert compressed(lines.asked) == [False, False, True]
    assert all("arrays" not in reply.content for reply in replies.values())


def test_what_is_chosen_is_told_once() -> None:
    """With the measured rates; again when a line's choice changes; and not for a round of an earlier worker."""
    told: list[tuple[str, Any]] = []
    lines = Lines({1: 2_500_000}, begun=["1"])
    grid = CompressionGrid(lines, BOTH, emit=lambda kind, detail: told.append((kind, dict(detail))))
    ask(grid, round="1")
    assert told == []  # the journal has what the earlier worker chose
    for round in ("2", "3"):
        ask(grid, round=round)
        ask(grid, round=round, kind="evaluate")
    lines.slow_lines = {1: 2_500_000, 3: 125_000}
    ask(grid, round="4")
    lines.slow_lines = {3: 125_000}
    ask(grid, (2, 3), round="5")
    ask(grid, round="6")
    chosen = {"upload": "int8", "download": "int8"}
    assert told == [
        (
            "compression_chosen",
            {"round": 2, **chosen, "slow": "site-1 (20 Mbit/s)", "no_longer_slow": ""},
        ),
        (
            "compression_chosen",
            {"round": 4, **chosen, "slow": "client 3 (1 Mbit/s)", "no_longer_slow": ""},
        ),
        ("compression_chosen", {"round": 6, **chosen, "slow": "", "no_longer_slow": "site-1"}),
    ]


def test_a_crowd_is_counted() -> None:
    """An event of many slow lines names some."""
    told: list[Any] = []
    crowd = range(1, 31)
    lines = Lines(dict.fromkeys(crowd, 9), clients=30)
    ask(CompressionGrid(lines, BOTH, emit=lambda kind, detail: told.append(detail)), list(crowd))
    assert told[0]["slow"].endswith(f"and {30 - LISTED_MAX} more")


def test_clients_never_read_auto() -> None:
    """It is the server's word; a client would not know what to do."""
    with pytest.raises(ProtocolError, match="unknown"):
        CompressionTerms.read(BOTH.record())
