"""Asynchronous rounds with clients behind relays: synchronous below a relay, and nobody waits above."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict

from meadow.errors import ConfigError
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.relay.trainer import _Answer
from meadow.server.worker.relayed_replies import replies_behind
from meadow.strategies.algorithms.algorithm import Algorithm, Params
from meadow.strategies.algorithms.asynchrony import Asynchrony
from meadow.strategies.algorithms.fedasync import fedasync
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.algorithms.fedbuff import fedbuff
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan

from ..strategies.conftest import MemoryGrid, MemoryRecorder, bytes_of, drift, model
from ..strategies.push_grid import PushGrid

identify_process(run_id=1, node_id=0)
BEHIND = {2: 7, 3: 7, 4: 8, 5: 8}
"""By client: its relay; client 1 has none."""
PACE = {1: 1.0, 2: 1.3, 3: 1.1, 4: 2.9, 5: 4.0}
EVEN = dict.fromkeys(PACE, 1.0)


class TreeGrid(PushGrid):
    """A grid whose relays answer once all of their clients have."""

    combines_updates = adds_exactly = True

    def __init__(self, client: Any, seconds: dict[int, float]) -> None:
        super().__init__(client, seconds)
        self.groups: dict[str, list[Message]] = {}

    def relay_of(self, client: int) -> int:
        return BEHIND.get(client, 0)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        batch = list(messages)
        relays = {self.relay_of(message.metadata.dst_node_id) for message in batch}
        ids = super().push_messages(batch)
        if relays == {0}:
            return ids
        assert len(relays) == 1 and all(m.content is batch[0].content for m in batch)
        at_work = {
            self.relay_of(m.metadata.dst_node_id) for each in self.groups.values() for m in each
        }
        assert not relays & at_work, "a relay has two instructions"
        done_s = max(self.due.pop(id_)[0] for id_ in ids)
        self.due[ids[0]], self.groups[ids[0]] = (done_s, batch[0]), batch
        return ids[:1]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for reply in super().pull_messages(message_ids):
            batch = self.groups.pop(reply.metadata.reply_to_message_id, None)
            if batch is None:
                replies.append(reply)
                continue
            asked = [message.metadata.dst_node_id for message in batch]
            answer = _Answer(batch[0].content)
            for message in batch:
                answer.take(Message(self.client(message) or Error(4, "gone"), reply_to=message))
            combined = Message(answer.content(asked), reply_to=batch[0])
            replies += replies_behind(combined, asked, relay="north")
        return replies

    def forget(self, group_id: str) -> None:
        super().forget(group_id)
        self.groups = {id_: each for id_, each in self.groups.items() if id_ in self.due}


def run(
    grid: MemoryGrid,
    asynchronous: Asynchrony,
    *,
    rounds: int = 2,
    recorder: MemoryRecorder | None = None,
    algorithm: Algorithm | None = None,
    start: Params | None = None,
) -> Params:
    """Return the model after some rounds."""
    strategy = FederatedStrategy(
        algorithm or fedavg(),
        RoundPlan(asynchronous=asynchronous, min_clients=2, seed=3, evaluate_every=0),
        recorder=recorder,
        clock=itertools.count().__next__,
    )
    arrays = params_to_arrays(model() if start is None else start)
    return arrays_to_params(strategy.start(grid, arrays, num_rounds=rounds).arrays)


def adds_own_number(message: Message) -> RecordDict:
    """A client that adds its number; it has twice as many examples."""
    client = message.metadata.dst_node_id
    trained = arrays_to_params(message.content["arrays"])["w"] + np.float32(client)
    metrics = MetricRecord({"num-examples": 2 * client, "loss": float(client)})
    return RecordDict({"arrays": params_to_arrays({"w": trained}), "metrics": metrics})


def test_a_buffer_for_all_is_a_synchronous_round() -> None:
    """With equally fast clients and room for all, the tree's rounds have the bits of one server's."""
    for server in ({}, {"server_optimizer": "adam"}):
        algorithm = fedavg(**server)  # type: ignore[arg-type]
        found = run(TreeGrid(drift, EVEN), fedbuff(buffer_size=5), rounds=1, algorithm=algorithm)
        flat = FederatedStrategy(algorithm, RoundPlan(seed=3, evaluate_every=0)).start(
            MemoryGrid(drift, EVEN), params_to_arrays(model()), num_rounds=1
        )
        assert bytes_of(found) == bytes_of(arrays_to_params(flat.arrays))


def test_sums_stay_exact_where_nothing_is_stale() -> None:
    """Means of equal weights often lie halfway between two float32: a relay's rounding would show."""
    start = {"w": np.random.default_rng(1).standard_normal(20_000).astype(np.float32)}

    def client(message: Message) -> RecordDict:
        message.content["config"]["server-round"] = 1
        reply = drift(message)
        reply["metrics"] = MetricRecord({"num-examples": 1, "loss": 1.0})
        return reply

    class ThreeBehind(TreeGrid):
        def relay_of(self, client: int) -> int:
            return 7 if client > 1 else 0

    pace = dict.fromkeys((1, 2, 3, 4), 1.0)
    found = run(ThreeBehind(client, pace), fedbuff(buffer_size=4), rounds=1, start=start)
    flat = run(PushGrid(client, pace), fedbuff(buffer_size=4), rounds=1, start=start)
    assert bytes_of(found) == bytes_of(flat)


def test_who_trains_twice_from_the_same_params_takes_other_batches() -> None:
    """Each client of a relay's group hears how often it has begun with them."""
    grid = TreeGrid(drift, EVEN)
    run(grid, fedbuff(buffer_size=10), rounds=1)
    for client in PACE:
        asked = [m for m in grid.sent if m.metadata.dst_node_id == client]
        assert [m.content["config"].get("repeat", 0) for m in asked[:2]] == [0, 1]


def test_a_restarted_worker_gives_the_journals_groups_again() -> None:
    """Instructions that are not in a checkpoint are known by their groups, with all their clients."""
    grid = TreeGrid(drift, EVEN)
    journal = {"i1": [2, 3], "i2": [1], "i3": [5]}
    grid.cohort_of = lambda group: journal.get(group, ())  # type: ignore[attr-defined]
    run(grid, fedbuff(buffer_size=4), rounds=1)
    given = [(m.metadata.group_id, m.metadata.dst_node_id) for m in grid.sent]
    assert given[:4] == [("i1", 2), ("i1", 3), ("i2", 1), ("i3", 5)]
    assert not {4} & {client for _, client in given[:4]}


def test_a_relays_mean_by_hand() -> None:
    """What a relay's clients made of old params counts, together, for what it is worth by then."""
    recorder = MemoryRecorder()
    pace = {1: 1.0, 2: 1.5, 3: 1.5, 4: 99.0, 5: 99.0}
    found = run(
        TreeGrid(adds_own_number, pace),
        fedbuff(buffer_size=1),
        recorder=recorder,
        start={"w": np.zeros(3, np.float32)},
    )
    first = 1.0
    second = first + (2 * 2 + 3 * 3) / (2 + 3) / np.sqrt(2)
    np.testing.assert_allclose(found["w"], second, rtol=1e-7)
    assert [row["clients"] for row in recorder.rows] == [1, 2]
    assert recorder.rows[1]["staleness"] == {"mean": 1, "max": 1}
    assert recorder.rows[1]["failures"] == 0
    assert recorder.rows[1]["train"] == {"loss": (2 * 2 + 3 * 3) / (2 + 3)}
    assert recorder.tables[1].line()["clients"] == [2, 3]


def test_fedasync_moves_to_a_relays_mean() -> None:
    """The newest params go a part of the way to the mean of the clients behind a relay."""
    pace = {1: 9.0, 2: 1.0, 3: 1.0, 4: 99.0, 5: 99.0}
    start = {"w": np.zeros(3, np.float32)}
    found = run(TreeGrid(adds_own_number, pace), fedasync(mixing=0.5), rounds=1, start=start)
    np.testing.assert_allclose(found["w"], 0.5 * (2 * 2 + 3 * 3) / 5, rtol=1e-6)


class KilledError(Exception):
    """The process is gone."""


@pytest.mark.parametrize("pace", [PACE, EVEN], ids=["uneven", "even"])
@pytest.mark.parametrize(
    "how",
    [
        lambda: fedbuff(buffer_size=3, concurrency=4),
        lambda: fedbuff(buffer_size=2, max_staleness=2),
        lambda: fedasync(concurrency=0.8),
    ],
)
def test_interrupted_after_any_round_is_uninterrupted(how: Any, pace: dict[str, float]) -> None:
    """What relays had under way at a checkpoint is given to them again, as the same groups."""
    rounds = 6

    class Dying(MemoryRecorder):
        def event(self, name: str, detail: Any) -> None:
            if name == "round_committed" and len(self.rows) < rounds:
                raise KilledError

    whole, pieces = MemoryRecorder(), Dying()
    expected = run(TreeGrid(drift, pace), how(), recorder=whole, rounds=rounds)  # type: ignore[arg-type]
    for _ in range(rounds - 1):
        with pytest.raises(KilledError):
            run(TreeGrid(drift, pace), how(), recorder=pieces, rounds=rounds)  # type: ignore[arg-type]
    found = run(TreeGrid(drift, pace), how(), recorder=pieces, rounds=rounds)  # type: ignore[arg-type]
    assert bytes_of(found) == bytes_of(expected)
    assert [{**row, "duration_s": 0} for row in pieces.rows] == [
        {**row, "duration_s": 0} for row in whole.rows
    ]


def test_who_fails_behind_a_relay_does_not_hold_up_the_others() -> None:
    """Its failure is its own, the relay's other clients count, and it is asked again later."""
    recorder = MemoryRecorder()

    def client(message: Message) -> RecordDict | Error:
        return Error(1, "no") if message.metadata.dst_node_id == 3 else drift(message)

    grid = TreeGrid(client, EVEN)
    run(grid, fedbuff(buffer_size=4), recorder=recorder, rounds=2)
    failed = recorder.heard("client_failed")
    assert [(each["round"], each["client"]) for each in failed] == [(1, 3), (2, 3)]
    assert all(each["reason"] == "behind north: no" for each in failed)
    assert [row["clients"] for row in recorder.rows] == [4, 4]


def test_a_relay_that_sends_rubbish_is_not_asked_again_in_the_round() -> None:
    """All clients in a refused sum have failed; the round goes on with the others."""
    recorder = MemoryRecorder()

    class Rubbish(TreeGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            replies = super().pull_messages(message_ids)
            for reply in replies:
                if reply.metadata.src_node_id in (2, 3):
                    reply.content["arrays"] = params_to_arrays({"other": np.zeros(1)})
            return replies

    grid = Rubbish(drift, EVEN)
    run(grid, fedbuff(buffer_size=6), recorder=recorder, rounds=1)
    assert recorder.rows[0]["clients"] == 6 and recorder.rows[0]["failures"] == 2
    (refused,) = recorder.heard("update_refused")
    assert refused["client"] == 2
    assert sum(m.metadata.dst_node_id in (2, 3) for m in grid.sent) == 2


def test_stale_groups_are_stopped() -> None:
    """All clients of a relay that works on too old params are free again, and the relay hears so."""
    recorder = MemoryRecorder()
    grid = TreeGrid(drift, {1: 1.0, 2: 100.0, 3: 100.0, 4: 200.0, 5: 200.0})
    run(grid, fedbuff(buffer_size=1, max_staleness=2), recorder=recorder, rounds=3)
    stopped = recorder.heard("client_failed")
    assert sorted(each["client"] for each in stopped if each["round"] == 3) == [2, 3, 4, 5]
    groups = {m.metadata.group_id for m in grid.sent if m.metadata.dst_node_id in BEHIND}
    assert groups <= set(grid.forgotten)
    assert sorted(recorder.tables[2].line()["late"]) == [2, 3, 4, 5]


def test_what_needs_more_than_sums_is_refused() -> None:
    """With the sentence that synchronous rounds have."""
    checked = replace(fedavg(), fault=lambda tensors: None)
    with pytest.raises(ConfigError, match=r"behind a relay.*selection\.tags"):
        run(TreeGrid(drift, EVEN), fedbuff(), algorithm=checked)
