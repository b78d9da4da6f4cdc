"""The virtual clock: when rounds end, who counts, and what time it is then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meadow.config.sections.simulation import DevicesConfig
from meadow.errors import QuorumError
from meadow.flower.messages import identify_process
from meadow.simulations.devices.available_cohort import draw_available
from meadow.simulations.devices.devices import Devices
from meadow.simulations.devices.timed_step import TimedStep
from meadow.simulations.devices.virtual_clock import VirtualClock
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.grids.example_counts import ExampleCounts
from meadow.simulations.grids.virtual_grid import VirtualGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.rounds.broadcast import Broadcast
from meadow.strategies.rounds.cohort import draw_cohort

identify_process(run_id=1, node_id=0)

INF = float("inf")
ALIKE: dict[str, Any] = {"examples_per_s_spread": 0, "bandwidth_spread": 0, "latency_s": 1}

# ---------------------------------------------------------------- when a step ends


def step_of(
    arrivals_s: list[float], *, fails: tuple[int, ...] = (), quorum: int, deadline_s: float | None
) -> TimedStep:
    """Return a step that begins at 100 s, of clients that take this long."""
    failing = np.isin(np.arange(len(arrivals_s)), fails)
    times = 100 + np.array(arrivals_s)
    return TimedStep(times, failing, now_s=100.0, deadline_s=deadline_s, quorum=quorum)


@pytest.mark.parametrize(
    ("arrivals_s", "fails", "quorum", "deadline_s", "taken", "late", "end_s"),
    [
        ([3, 1, 2], (), 2, 60, [0, 1, 2], [], 103),  # everybody has answered
        ([3, 90, 2], (), 2, 60, [0, 2], [1], 160),  # the quorum is met, the deadline passed
        ([3, 90, 2], (), 1, 60, [0, 2], [1], 160),  # a met quorum does not end it earlier
        ([3, 90, 80], (), 2, 60, [0, 2], [1], 180),  # below the quorum it waits for the next
        ([3, 60, 2], (), 1, 60, [0, 1, 2], [], 103 + 57),  # at the deadline is in time
        ([3, INF, 2], (), 2, 60, [0, 2], [], 160),  # a dropout is waited for, but is not late
        ([3, INF, 90], (), 3, 60, [0, 2], [], 190),  # whom the quorum lacks never comes
        ([3, 90, 80], (2,), 2, 60, [0, 1, 2], [], 190),  # an error is no valid answer
        ([3, 90, 2], (2,), 1, 60, [0, 2], [1], 160),
        ([3, 90, INF], (), 1, None, [0, 1], [], 190),  # no deadline: all that come
        ([], (), 2, 60, [], [], 100),
        ([INF, INF], (), 1, 60, [], [], 160),
    ],
)
def test_when_a_step_ends(
    arrivals_s: list[float],
    fails: tuple[int, ...],
    quorum: int,
    deadline_s: float | None,
    taken: list[int],
    late: list[int],
    end_s: float,
) -> None:
    """When everybody has answered, or at the deadline with the quorum, or with the quorum."""
    step = step_of(arrivals_s, fails=fails, quorum=quorum, deadline_s=deadline_s)
    assert step.take(0).tolist() == taken
    assert step.take(len(set(taken) - set(fails))).tolist() == []
    assert (step.late.tolist(), step.end_s) == (late, end_s)


def test_an_answer_that_turns_out_useless_is_replaced() -> None:
    """Below the quorum the next ones are taken, as many as are lacking."""
    step = step_of([1, 2, 70, 80, 90], quorum=2, deadline_s=60)
    assert step.take(0).tolist() == [0, 1]
    assert step.take(1).tolist() == [2]
    assert step.take(1).tolist() == [3]
    assert step.take(2).tolist() == []
    assert (step.late.tolist(), step.end_s) == ([4], 180)


# ---------------------------------------------------------------- drawing among those there


@given(
    count=st.integers(1, 300),
    cohort=st.one_of(st.integers(1, 300), st.floats(0.01, 1)),
    at_least=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_with_everybody_there_the_cohort_is_the_same(
    count: int, cohort: float, at_least: int, seed: int
) -> None:
    """A clock without absences changes no round."""
    how: dict[str, Any] = {
        "cohort": cohort, "at_least": at_least, "seed": seed, "round_number": 3
    }  # fmt: skip
    drawn = draw_available(count, lambda ids: np.ones(len(ids), bool), **how)
    assert drawn == draw_cohort(range(1, count + 1), **how)


@given(st.sets(st.integers(1, 200)), st.integers(1, 50), st.integers(1, 20))
def test_only_those_there_are_drawn(there: set[int], cohort: int, at_least: int) -> None:
    """As many as are asked for, or all that are there."""
    drawn = draw_available(
        200,
        lambda ids: np.isin(ids, list(there)),
        cohort=cohort,
        at_least=at_least,
        seed=1,
        round_number=1,
    )
    assert set(drawn) <= there and drawn == sorted(set(drawn))
    assert len(drawn) == min(len(there), max(cohort, at_least))


def test_a_fraction_is_one_of_those_there() -> None:
    """A tenth of 20,000 clients, half of which are there, is about 1,000."""
    drawn = draw_available(
        20_000, lambda ids: ids % 2 == 0, cohort=0.1, at_least=2, seed=1, round_number=1
    )
    assert abs(len(drawn) - 1000) < 100 and all(id_ % 2 == 0 for id_ in drawn)


def test_a_large_population_is_not_gone_through() -> None:
    """A cohort of 100 among a million, half of them there, looks at a few hundred."""
    looked_at: list[int] = []

    class Counted(Devices):
        def available(self, ids: NDArray[np.integer], now_s: float) -> NDArray[np.bool_]:
            looked_at.append(len(ids))
            return super().available(ids, now_s)

    devices = Counted(config=DevicesConfig(available_share=0.5), seed=1)
    clients = SimulatedClients(1_000_000, run_id=1, run_config={})
    executor = SequentialExecutor(app, clients)
    counts = ExampleCounts(None, clients.count, otherwise=10)
    grid = VirtualGrid(executor, clients, clock=VirtualClock(devices), counts=counts)
    drawn = grid.draw_cohort(cohort=100, at_least=50, seed=1, round_number=1)
    assert len(drawn) == 100
    assert sum(looked_at) < 2000
    assert devices.available(np.array(drawn), 0.0).all()


# ---------------------------------------------------------------- the grid

executed: list[int] = []
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer, or fail if the message says so."""
    executed.append(context.node_id)
    if context.node_id in message.content.config_records["config"].get("raises", []):  # type: ignore[operator]
        raise OSError("the disk is gone")
    metrics = MetricRecord({"num-examples": 10, "node": context.node_id})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Client i has 100 i examples, and half as many for tests."""
    count = 100 * context.node_id
    metrics = MetricRecord({"num-examples": count, "num-test-examples": count // 2})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def grid_of(
    *, count: int = 5, quorum: int = 1, asks: bool = True, folder: Path | None = None, **said: Any
) -> VirtualGrid:
    """Return a grid of devices that are alike: 100 examples/s, and transfers at 1,000 bytes/s."""
    executed.clear()
    settings = {
        "examples_per_s": 100, "download_bytes_per_s": 1000, "upload_bytes_per_s": 1000, **ALIKE,
        **said,
    }  # fmt: skip
    devices = Devices.of(DevicesConfig(**settings), seed=1, clients=count, folder=folder or Path())
    clients = SimulatedClients(count, run_id=1, run_config={})
    executor = SequentialExecutor(app, clients)
    counts = ExampleCounts(executor if asks else None, count, otherwise=50)
    return VirtualGrid(executor, clients, clock=VirtualClock(devices, quorum=quorum), counts=counts)


def order(*clients: int, group: str = "1", **config: Any) -> Broadcast:
    content = RecordDict({"config": ConfigRecord(config)})
    return Broadcast(content, "train", clients, group_id=group)


def answers(grid: VirtualGrid, messages: Any, deadline_s: float | None) -> list[int]:
    """Return who answered without an error."""
    replies = grid.send_and_receive(messages, timeout=deadline_s)
    return [reply.metadata.src_node_id for reply in replies if reply.has_content()]


def test_arrivals_by_hand() -> None:
    """Client i of 100 i examples, twice gone through at 100/s, answers after 1 + 2 i seconds."""
    grid = grid_of()
    assert answers(grid, order(1, 2, 5, epochs=2), 60) == [1, 2, 5]
    assert (grid.now_s, grid.late) == (11.0, [])
    answers(grid, order(3), 60)
    assert grid.now_s == 15.0


def test_transfers_take_time() -> None:
    """4,000 bytes of params down and up again at 1,000/s are 8 s beside latency and training."""
    grid = grid_of()
    record = ArrayRecord([np.zeros(1000, np.float32)])
    size = sum(len(array.data) for array in record.values())
    content = RecordDict({"arrays": record, "config": ConfigRecord()})
    answers(grid, Broadcast(content, "train", [1], group_id="1"), 60)
    assert grid.now_s == 1 + 2 * size / 1000 + 1
    list(grid.send_and_receive(Broadcast(content, "evaluate", [2], group_id="1")))
    assert grid.now_s == pytest.approx(1 + 2 * size / 1000 + 1 + 1 + size / 1000 + 1)
    assert grid.bytes_sent == 2 * size


def test_who_would_be_late_is_not_executed() -> None:
    """With the quorum met, the round ends at its deadline; what is late costs nothing."""
    grid = grid_of(quorum=2)
    assert answers(grid, order(1, 2, 3, 4, 5), 3.5) == [1, 2]
    assert (executed, grid.late, grid.now_s) == ([1, 2], [3, 4, 5], 3.5)


def test_below_the_quorum_the_round_waits_on() -> None:
    """The third arrives after 4 s, half a second past the deadline."""
    grid = grid_of(quorum=3)
    assert answers(grid, order(1, 2, 3, 4, 5), 3.5) == [1, 2, 3]
    assert (executed, grid.late, grid.now_s) == ([1, 2, 3], [4, 5], 4.0)


def test_what_an_app_raises_does_not_count_towards_the_quorum() -> None:
    """Then the next one to arrive is executed, and the round ends when it has."""
    grid = grid_of(quorum=2)
    assert answers(grid, order(1, 2, 3, 4, raises=[1, 3]), 2.5) == [2, 4]
    assert (executed, grid.late, grid.now_s) == ([1, 2, 3, 4], [], 5.0)


def test_dropouts_never_answer_and_failures_are_errors() -> None:
    """Neither is executed; a dropout lets the round last until its deadline."""
    grid = grid_of(count=200, quorum=1, asks=False, dropout=0.3, failure=0.2)
    everybody = range(1, 201)
    replies = list(grid.send_and_receive(order(*everybody), timeout=60))
    failed = {reply.metadata.src_node_id for reply in replies if reply.has_error()}
    good = {reply.metadata.src_node_id for reply in replies if reply.has_content()}
    drops, fails = grid._clock.devices.fates(np.array(everybody), "1/train")
    assert good == set(executed) == set(np.flatnonzero(~drops & ~fails) + 1)
    assert failed == set(np.flatnonzero(fails) + 1)
    assert all(reply.error.reason == "the simulated device failed" for reply in replies
               if reply.has_error())  # fmt: skip
    assert (grid.now_s, grid.late) == (60.0, [])


def test_an_app_that_is_not_asked() -> None:
    """Where clients cannot say how many examples they have, all have what the section says."""
    grid = grid_of(asks=False)
    answers(grid, order(1, 4), None)
    assert grid.now_s == 1.5


def test_examples_are_asked_for_once() -> None:
    """The second round knows them."""
    grid = grid_of()
    asked: list[int] = []
    inner = grid._executor.execute
    grid._executor.execute = lambda messages: (  # type: ignore[method-assign]
        asked.append(len(messages)) if messages.message_type == "query" else None,  # type: ignore[attr-defined]
        inner(messages),
    )[1]
    for _ in range(3):
        answers(grid, order(1, 2), 60)
    assert asked == [2]


def test_single_messages_have_their_own_work() -> None:
    """A list of messages, as a Flower strategy sends them: each with its own epochs."""
    grid = grid_of()
    messages = [
        Message(RecordDict({"config": ConfigRecord({"epochs": epochs})}), node, "train")
        for node, epochs in ((1, 1), (2, 3))
    ]
    assert answers(grid, messages, 5) == [1]
    assert (grid.late, grid.now_s) == ([2], 5.0)


def test_chances_belong_to_the_round() -> None:
    """Who drops out of a round does not depend on how long the rounds before it took."""
    short, long = (grid_of(count=50, dropout=0.5, latency_s=latency) for latency in (1, 9))
    for group in "123":
        everybody = order(*range(1, 51), group=group)
        assert answers(short, everybody, 600) == answers(long, everybody, 600)


# ---------------------------------------------------------------- availability

TRACE = "client,start_s,end_s\n1,0,50\n2,0,100\n3,60,100\n4,70,80\n"


def test_the_cohort_is_drawn_among_those_there(tmp_path: Path) -> None:
    """By the trace: clients 1 and 2 at first, 2 and 3 after a minute."""
    (tmp_path / "trace.csv").write_text(TRACE)
    grid = grid_of(trace="trace.csv", folder=tmp_path)
    how: dict[str, Any] = {"cohort": 5, "seed": 1, "round_number": 1}
    assert grid.draw_cohort(at_least=1, **how) == [1, 2]
    grid.begin_at(65)
    assert grid.draw_cohort(at_least=2, **how) == [2, 3]


def test_the_clock_goes_on_until_enough_are_there(tmp_path: Path) -> None:
    """Three at once are there from second 70 on, when the fourth has come."""
    (tmp_path / "trace.csv").write_text(TRACE)
    grid = grid_of(trace="trace.csv", folder=tmp_path)
    assert grid.draw_cohort(cohort=1.0, at_least=3, seed=1, round_number=1) == [2, 3, 4]
    assert grid.now_s == pytest.approx(70, abs=1e-5)
    grid.begin_at(85)
    assert grid.draw_cohort(cohort=1.0, at_least=3, seed=1, round_number=1) == [2, 3, 4]
    assert grid.now_s == pytest.approx(170, abs=1e-5)


def test_a_quorum_that_is_never_there_is_an_error(tmp_path: Path) -> None:
    """Client 5 is not in the trace; and 1 and 4 are never there together."""
    (tmp_path / "trace.csv").write_text(TRACE)
    grid = grid_of(trace="trace.csv", folder=tmp_path)
    for needed in (4, 5):
        with pytest.raises(QuorumError, match=f"{needed} of 5 clients are never there at once"):
            grid.draw_cohort(cohort=1.0, at_least=needed, seed=1, round_number=1)


def test_enough_are_waited_for_with_drawn_periods() -> None:
    """Eight of ten clients that are there half of the time: some day, and then they are."""
    grid = grid_of(count=10, available_share=0.5, period_s=100)
    drawn = grid.draw_cohort(cohort=1.0, at_least=8, seed=1, round_number=1)
    assert len(drawn) == 8 and grid.now_s > 0
    assert grid._clock.devices.available(np.array(drawn), grid.now_s).all()


# ---------------------------------------------------------------- push and pull


def push(grid: VirtualGrid, *clients: int, ttl: float = 1000.0) -> list[str]:
    content = RecordDict({"config": ConfigRecord()})
    messages = [Message(content, client, "train", ttl=ttl) for client in clients]
    return list(grid.push_messages(messages))


def test_pulling_goes_on_to_the_next_arrival() -> None:
    """Client i answers after 1 + i seconds; what has not arrived stays to be pulled."""
    grid = grid_of()
    ids = push(grid, 3, 1, 2)
    seen = []
    for _ in range(3):
        (reply,) = grid.pull_messages(ids)
        seen.append((reply.metadata.src_node_id, grid.now_s))
    assert seen == [(1, 2.0), (2, 3.0), (3, 4.0)]
    assert list(grid.pull_messages(ids)) == []
    assert executed == [1, 2, 3]


def test_what_has_arrived_meanwhile_is_pulled_at_once() -> None:
    """A round that took 6 s: client 1, then 3, have answered; 4 has not been asked yet."""
    grid = grid_of()
    ids = push(grid, 3, 1)
    answers(grid, order(5), 60)
    ids += push(grid, 4)
    replies = list(grid.pull_messages(ids))
    assert [reply.metadata.src_node_id for reply in replies] == [1, 3]
    assert grid.now_s == 6.0
    (reply,) = grid.pull_messages(ids)
    assert (reply.metadata.src_node_id, grid.now_s) == (4, 11.0)


def test_an_asynchronous_loop() -> None:
    """Two at work at any time, whoever answers is asked again: the fast one answers more often."""
    grid = grid_of()
    open_ids, seen = push(grid, 1, 4), []
    while len(seen) < 8:
        for reply in grid.pull_messages(open_ids):
            seen.append((reply.metadata.src_node_id, grid.now_s))
            open_ids.remove(reply.metadata.reply_to_message_id)
            open_ids += push(grid, reply.metadata.src_node_id)
    assert seen == [(1, 2), (1, 4), (4, 5), (1, 6), (1, 8), (4, 10), (1, 10), (1, 12)]


def test_a_client_goes_through_its_messages_in_turn() -> None:
    """Two messages to one client take it twice as long as one."""
    grid = grid_of()
    ids = push(grid, 2, 2)
    list(grid.pull_messages(ids))
    list(grid.pull_messages(ids))
    assert grid.now_s == 6.0


def test_a_forgotten_message_frees_its_client() -> None:
    """It is not executed; what the client was given after it comes when it would have anyway."""
    grid = grid_of()
    first, second = push(grid, 4, ttl=900), push(grid, 3)
    grid._waiting[first[0]].metadata.group_id, grid._waiting[second[0]].metadata.group_id = "a", "b"
    grid.forget("a")
    third = push(grid, 4)
    seen = []
    while replies := list(grid.pull_messages([*first, *second, *third])):
        seen += [(reply.metadata.src_node_id, grid.now_s) for reply in replies]
    assert seen == [(3, 4.0), (4, 5.0)]
    assert executed == [3, 4]


def test_no_answer_within_the_time_to_live_is_an_error() -> None:
    """As in Flower, so that a loop over dropouts, or over slow clients, ends."""
    grid = grid_of(dropout=1)
    (reply,) = grid.pull_messages(push(grid, 1, ttl=30))
    assert reply.error.reason == "no answer within 30 s" and grid.now_s == 30.0
    grid = grid_of()
    (reply,) = grid.pull_messages(push(grid, 5, ttl=5.5))
    assert reply.has_error() and grid.now_s == 5.5 and executed == []


def test_the_same_seed_gives_the_same_times() -> None:
    """Drawn devices, dropouts and failures: rounds and single messages repeat to the bit."""

    def times() -> list[tuple[float, list[int]]]:
        spread = {"examples_per_s_spread": 1, "bandwidth_spread": 1, "dropout": 0.2}
        grid = grid_of(count=30, quorum=5, failure=0.1, available_share=0.5, **spread)
        seen = []
        for number in range(1, 5):
            cohort = grid.draw_cohort(cohort=10, at_least=5, seed=1, round_number=number)
            who = answers(grid, order(*cohort, group=str(number)), 20)
            seen.append((grid.now_s, who))
        ids = push(grid, *cohort)
        while replies := list(grid.pull_messages(ids)):
            seen.append((grid.now_s, [reply.metadata.src_node_id for reply in replies]))
        return seen

    first = times()
    assert first == times()
    assert [now_s for now_s, _ in first] == sorted(now_s for now_s, _ in first)
