"""What is seen of a plain Flower app's server side while it runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result, Strategy

import meadow
from meadow.flower.messages import identify_process, params_to_arrays, set_message_id
from meadow.flower_apps.result import ObservedGrid, capture_result
from meadow.strategies.rounds.plan import RoundPlan

identify_process(run_id=1, node_id=0)

Answer = Callable[[Message], RecordDict | Error]


class FakeGrid(Grid):
    """Two clients in memory that answer when their replies are fetched, in order."""

    def __init__(self, answer: Answer, nodes: Iterable[int] = (1, 2)) -> None:
        self.answer, self.nodes = answer, list(nodes)
        self.executed: list[Message] = []
        self.bytes_sent = self.bytes_received = 0
        self.waiting: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        self.was_set = run

    @property
    def run(self) -> Any:
        return "the run"

    def create_message(self, content: RecordDict, *args: Any, **kwargs: Any) -> Message:
        return Message(content, 1, "train")

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for message in messages:
            set_message_id(message, f"m{len(self.waiting)}")
            self.waiting[message.metadata.message_id] = message
        return list(self.waiting)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._reply(self.waiting.pop(id_)) for id_ in list(message_ids)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        return (self._reply(message) for message in list(messages))

    def wait_for_nodes(self, number: int) -> list[int]:
        """What Meadow's grids have beyond Flower's."""
        return self.nodes[:number]

    def _reply(self, message: Message) -> Message:
        self.executed.append(message)
        self.bytes_sent += 100
        self.bytes_received += 10
        return Message(self.answer(message), reply_to=message)


def honest(message: Message) -> RecordDict:
    """A client whose params, loss and weight are its own number."""
    node = message.metadata.dst_node_id
    metrics = MetricRecord({"num-examples": 10 * node, "loss": float(node), "curve": [1.0, 2.0]})
    if message.metadata.message_type != "train":
        return RecordDict({"metrics": metrics})
    arrays = ArrayRecord([np.full(3, node, dtype=np.float32)])
    return RecordDict({"arrays": arrays, "metrics": metrics})


def start(strategy: Strategy, grid: Grid, rounds: int, **options: Any) -> Result:
    """Start a strategy from zeros."""
    return strategy.start(
        grid, ArrayRecord([np.zeros(3, dtype=np.float32)]), num_rounds=rounds, **options
    )


def observe(grid: Grid, main: Callable[[Grid], object]) -> tuple[list[Any], ObservedGrid]:
    """Run an app's main function on an observed grid; return the rows and the grid."""
    rows: list[Any] = []
    ticks = count()
    with ObservedGrid(grid, on_round=rows.append, clock=lambda: float(next(ticks))) as observed:
        main(observed)
    return rows, observed


def train_messages(node_ids: Iterable[int], number: int | None = None) -> list[Message]:
    """Return what an app without a strategy sends."""
    config = ConfigRecord({} if number is None else {"server-round": number})
    content = RecordDict({"config": config})
    return [Message(content, node, "train") for node in node_ids]


def test_a_round_becomes_a_row() -> None:
    """FedAvg's rounds give rows with the same means as its own result."""
    with capture_result() as captured:
        rows, _ = observe(FakeGrid(honest), lambda grid: start(FedAvg(), grid, 2))
    assert [row["round"] for row in rows] == [1, 2]
    loss = (10 * 1 + 20 * 2) / 30
    assert rows[0] == {
        "round": 1,
        "duration_s": 1.0,
        "clients": 2,
        "failures": 0,
        "train": {"loss": pytest.approx(loss)},
        "evaluate": {"loss": pytest.approx(loss)},
        "server": {},
        "bytes_sent": 400,
        "bytes_received": 40,
        "privacy": None,
    }
    assert captured.result is not None
    for number, row in enumerate(rows, start=1):
        aggregated = captured.result.train_metrics_clientapp[number]
        assert row["train"]["loss"] == pytest.approx(aggregated["loss"])


def test_the_result_of_a_server_app_is_captured() -> None:
    """The arrays that a ServerApp's main function keeps to itself are seen after it returns."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start(FedAvg(), grid, 1)

    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    with capture_result() as captured, ObservedGrid(FakeGrid(honest), on_round=print) as grid:
        assert captured.result is None
        app(grid, context)
    assert captured.result is not None
    (params,) = captured.result.arrays.to_numpy_ndarrays()
    np.testing.assert_allclose(params, (10 * 1 + 20 * 2) / 30, rtol=1e-6)


def test_flower_is_left_as_it_was() -> None:
    """After capturing, also after an error, strategies start as Flower wrote them."""
    before = {kind: kind.__dict__["start"] for kind in (Strategy, meadow.FederatedStrategy)}
    with pytest.raises(RuntimeError), capture_result():
        assert Strategy.start is not before[Strategy]
        raise RuntimeError
    assert all(kind.__dict__["start"] is start for kind, start in before.items())


class Stubborn(FedAvg):
    """A strategy with a start of its own that never calls Flower's."""

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        return Result(arrays=ArrayRecord([np.ones(1)]))


class Polite(FedAvg):
    """A strategy with a start of its own around Flower's."""

    def start(self, *args: Any, **kwargs: Any) -> Result:
        result = super().start(*args, **kwargs)
        result.evaluate_metrics_serverapp[99] = MetricRecord({"mine": 1.0})
        return result


@pytest.mark.parametrize("kind", [Stubborn, Polite])
def test_a_start_of_its_own_is_captured(kind: type[FedAvg]) -> None:
    """What a subclass's start returns is kept, whether or not it calls Flower's."""
    with capture_result() as captured:
        result = start(kind(), FakeGrid(honest), 1)
    assert captured.result is result


def test_central_evaluation_is_in_the_row() -> None:
    """What evaluate_fn returns for a round is in its row; the initial one is in none."""
    seen: list[int] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        seen.append(server_round)
        return None if server_round == 2 else MetricRecord({"accuracy": server_round / 4})

    with capture_result():
        rows, grid = observe(
            FakeGrid(honest), lambda grid: start(FedAvg(), grid, 3, evaluate_fn=evaluate)
        )
    assert seen == [0, 1, 2, 3]
    assert [row["server"] for row in rows] == [{"accuracy": 0.25}, {}, {"accuracy": 0.75}]
    assert grid.last_arrays is not None
    (params,) = grid.last_arrays.to_numpy_ndarrays()
    np.testing.assert_allclose(params, 5 / 3, rtol=1e-6)


def test_errors_are_failures() -> None:
    """A client that answers with an error counts as a failure, and nothing of it is averaged."""

    def second_fails(message: Message) -> RecordDict | Error:
        return Error(2, "no") if message.metadata.dst_node_id == 2 else honest(message)

    rows, _ = observe(FakeGrid(second_fails), lambda grid: start(FedAvg(), grid, 1))
    assert (rows[0]["clients"], rows[0]["failures"]) == (1, 1)
    assert rows[0]["train"] == rows[0]["evaluate"] == {"loss": 1.0}


@pytest.mark.parametrize(
    ("kind", "row"),
    [("train", (1, 1)), ("evaluate", (2, 1)), ("query", (1, 1))],
)
def test_every_failure_is_told_once(kind: str, row: tuple[int, int]) -> None:
    """Whatever a client was asked for: the round, who, at what, and what it said; a client whose
    training counts is one of the round's clients."""

    def fails(message: Message) -> RecordDict | Error:
        asked = message.metadata
        failing = asked.dst_node_id == 2 and asked.message_type == kind
        return Error(2, "no\x1b[2J") if failing else honest(message)

    told: list[Any] = []
    rows: list[Any] = []
    with ObservedGrid(FakeGrid(fails), on_round=rows.append, on_failure=told.append) as grid:
        if kind == "query":
            grid.send_and_receive([Message(RecordDict(), node, "query") for node in (1, 2)])
        else:
            start(FedAvg(), grid, 1)
    assert [(each["clients"], each["failures"]) for each in rows] == [row]
    (detail,) = told
    during = {} if kind == "train" else {"during": kind}
    assert detail == {"round": 1, "client": 2, "reason": "no?[2J", "fault": "raised", **during}


def test_who_has_not_answered_is_told_when_the_round_is_over() -> None:
    """Not when its reply is asked for in vain: it may still come."""

    class Slow(FakeGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            ids = [id_ for id_ in message_ids if id_ in self.waiting]
            return super().pull_messages(ids[:1])

    told: list[Any] = []
    rows: list[Any] = []
    with ObservedGrid(Slow(honest), on_round=rows.append, on_failure=told.append) as grid:
        ids = grid.push_messages(train_messages([1, 2], 1))
        for _ in range(2):
            grid.pull_messages(ids)
        ids = grid.push_messages(train_messages([1, 2], 2))
        grid.pull_messages(ids)
        assert told == []
    assert [(each["clients"], each["failures"]) for each in rows] == [(2, 0), (1, 1)]
    assert [(each["round"], each["client"], each["reason"]) for each in told] == [
        (2, 2, "no answer before the app went on")
    ]


def test_rows_come_while_the_app_runs() -> None:
    """A round's row is there when the next round's train messages are sent."""
    rows: list[Any] = []
    with ObservedGrid(FakeGrid(honest), on_round=rows.append) as grid:
        grid.send_and_receive([Message(RecordDict(), 1, "query")])
        grid.send_and_receive(train_messages([1, 2], 1))
        assert rows == []
        grid.send_and_receive(train_messages([1], 2))
        assert [(row["round"], row["clients"]) for row in rows] == [(1, 2)]
        grid.send_and_receive([Message(RecordDict(), 1, "query.more")])
        assert len(rows) == 1
    assert [(row["round"], row["clients"]) for row in rows] == [(1, 2), (2, 1)]


def test_rounds_without_numbers_are_counted() -> None:
    """An app that numbers nothing has a round for each batch of train messages."""

    def main(grid: Grid) -> None:
        for _ in range(3):
            grid.send_and_receive(train_messages([1, 2]))
            grid.send_and_receive([Message(RecordDict(), 1, "evaluate")])

    rows, _ = observe(FakeGrid(honest), main)
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert all(row["evaluate"] == {"loss": 1.0} for row in rows)


def test_numbers_go_up_through_a_second_strategy() -> None:
    """An app that starts two strategies has their rounds in a row, each with its own metrics."""

    def main(grid: Grid) -> None:
        for base in (0.0, 100.0):
            start(
                FedAvg(),
                grid,
                2,
                evaluate_fn=lambda n, arrays, base=base: MetricRecord({"x": base + n}),
            )

    with capture_result():
        rows, _ = observe(FakeGrid(honest), main)
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert [row["server"]["x"] for row in rows] == [1.0, 2.0, 101.0, 102.0]


def test_several_batches_of_one_round_are_one_row() -> None:
    """Train messages with the number of the round under way belong to it."""

    def main(grid: Grid) -> None:
        grid.send_and_receive(train_messages([1], 7))
        grid.send_and_receive(train_messages([2], 7))

    rows, _ = observe(FakeGrid(honest), main)
    assert [(row["round"], row["clients"]) for row in rows] == [(7, 2)]


def test_an_interrupted_round_has_no_row() -> None:
    """An exception between replies leaves the rounds before; one after the replies loses none."""
    rows: list[Any] = []

    def crashes(message: Message) -> RecordDict:
        if message.content["config"]["server-round"] == 2:
            raise KeyboardInterrupt
        return honest(message)

    with (
        pytest.raises(KeyboardInterrupt),
        ObservedGrid(FakeGrid(crashes), on_round=rows.append) as grid,
    ):
        start(FedAvg(), grid, 3)
    assert [row["round"] for row in rows] == [1]
    with pytest.raises(ValueError), ObservedGrid(FakeGrid(honest), on_round=rows.append) as grid:
        start(FedAvg(), grid, 2)
        raise ValueError
    assert [row["round"] for row in rows] == [1, 1, 2]


def test_on_round_can_end_the_app() -> None:
    """What the callback raises goes through the app, and the round is told once."""
    told: list[int] = []

    def stop(row: Any) -> None:
        told.append(row["round"])
        raise InterruptedError

    with pytest.raises(InterruptedError), ObservedGrid(FakeGrid(honest), on_round=stop) as grid:
        start(FedAvg(), grid, 5)
    assert told == [1]


def test_an_app_may_go_through_replies_twice() -> None:
    """An app's own code gets a list, as from Flower's own grids."""
    with ObservedGrid(FakeGrid(honest), on_round=lambda row: None) as grid:
        replies = grid.send_and_receive(train_messages([1, 2], 1))
    assert isinstance(replies, list)
    assert [reply.metadata.src_node_id for reply in replies] == [1, 2]


def test_meadow_strategies_get_replies_as_they_come() -> None:
    """A FederatedStrategy in a Flower app takes each reply before the next one is made."""
    taken: list[int] = []

    class Watching(meadow.FederatedStrategy):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            def each() -> Iterator[Message]:
                for reply in replies:
                    taken.append(len(inner.executed))
                    yield reply

            return super().aggregate_train(server_round, each())

    def trains(message: Message) -> RecordDict:
        content = honest(message)
        if "arrays" in content:
            content["arrays"] = params_to_arrays({"w": np.ones(3, dtype=np.float32)})
        return content

    inner = FakeGrid(trains, nodes=[1, 2, 3])
    plan = RoundPlan(min_clients=3, evaluate_every=0)
    with capture_result() as captured:
        rows, _ = observe(
            inner,
            lambda grid: Watching(meadow.fedavg(), plan).start(
                grid, params_to_arrays({"w": np.zeros(3, dtype=np.float32)}), num_rounds=1
            ),
        )
    assert taken == [1, 2, 3]
    assert captured.result is not None
    assert rows[0]["clients"] == 3


def test_a_strategy_weighs_by_its_own_key() -> None:
    """Metrics are weighted by the key that the strategy names, and plainly where none is sent."""

    def weighted(message: Message) -> RecordDict:
        node = message.metadata.dst_node_id
        metrics = MetricRecord({"steps": 3 * node, "loss": float(node)})
        content = honest(message)
        content["metrics"] = metrics
        return content

    with capture_result():
        rows, _ = observe(
            FakeGrid(weighted), lambda grid: start(FedAvg(weighted_by_key="steps"), grid, 1)
        )
    assert rows[0]["train"] == {"loss": pytest.approx(5 / 3)}
    rows, _ = observe(
        FakeGrid(weighted), lambda grid: grid.send_and_receive(train_messages([1, 2]))
    )
    assert rows[0]["train"] == {"loss": 1.5, "steps": 4.5}


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), 1e300])
def test_a_useless_weight_counts_as_one_example(weight: float) -> None:
    """Whatever a client sends for its weight, the row stays plain numbers."""

    def odd(message: Message) -> RecordDict:
        node = message.metadata.dst_node_id
        metrics = {"num-examples": weight if node == 1 else 3, "loss": float(node)}
        return RecordDict({"metrics": MetricRecord(metrics)})

    rows, _ = observe(FakeGrid(odd), lambda grid: grid.send_and_receive(train_messages([1, 2])))
    assert rows[0]["train"] == {"loss": pytest.approx((1 + 3 * 2) / 4)}


def test_pushed_messages_are_seen_too() -> None:
    """An app that pushes and pulls by itself has rows as well."""

    def main(grid: Grid) -> None:
        for number in (1, 2):
            ids = grid.push_messages(train_messages([1, 2], number))
            assert len(list(grid.pull_messages(ids))) == 2

    rows, _ = observe(FakeGrid(honest), main)
    assert [(row["round"], row["clients"]) for row in rows] == [(1, 2), (2, 2)]


def test_everything_else_is_passed_on() -> None:
    """The observed grid can do what the inner one can, and nothing else."""
    inner = FakeGrid(honest)
    grid = ObservedGrid(inner, on_round=lambda row: None)
    grid.set_run("another")
    assert inner.was_set == "another"
    assert (grid.run, grid.get_node_ids(), grid.wait_for_nodes(1)) == ("the run", [1, 2], [1])
    assert [node.node_id for node in grid.get_nodes()] == [1, 2]
    assert grid.create_message(RecordDict(), "train", 1, "").metadata.message_type == "train"
    assert not hasattr(grid, "is_stopping")
