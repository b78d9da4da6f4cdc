"""`FleetGrid` with messages that are pushed: answers, ends without one, and files that are done."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from meadow.flower.messages import identify_process, params_to_arrays, set_message_id
from meadow.server.worker.grid import SPANS_MAX, FleetGrid
from meadow.transport import fleet_pb2 as pb
from meadow.transport.blobs import blob_path
from meadow.transport.codec import BlobWriter, encode
from meadow.transport.relaying import RELAY_RECORD
from meadow.transport.spans import Span, Traces

identify_process(run_id=1, node_id=0)
PARAMS = params_to_arrays({"w": np.arange(10_000, dtype=np.float32)})


class Desk:
    """A channel whose daemon says what a test lets it say."""

    def __init__(self) -> None:
        self.sent: list[pb.WorkerMessage] = []
        self.said: defaultdict[str, deque[pb.StepReply | pb.StepEnd]] = defaultdict(deque)
        self.waited_for: list[set[str]] = []

    def send(self, message: pb.WorkerMessage) -> None:
        self.sent.append(message)

    def ready_of(self, key: str) -> pb.StepReply | pb.StepEnd | None:
        return self.said[key].popleft() if self.said[key] else None

    def next_of(self, key: str) -> pb.StepReply | pb.StepEnd:
        return self.said[key].popleft()

    def wait_for_any(self, keys: Iterable[str]) -> None:
        self.waited_for.append(set(keys))

    def close_step(self, key: str) -> None:
        self.said.pop(key, None)

    @property
    def steps(self) -> list[pb.Step]:
        """The steps that the daemon was asked for."""
        return [message.step for message in self.sent if message.HasField("step")]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def grid(desk: Desk, tmp_path: Path) -> FleetGrid:
    """A grid of a run without a past."""
    return FleetGrid(desk, run_id=1, spool=tmp_path, quorum=0, secret=b"s", cohorts={"i7": [3]})  # type: ignore[arg-type]


def push(grid: FleetGrid, group: str, *, client: int = 1, ttl: float = 30.0) -> str:
    """Push one instruction and return its id."""
    message = Message(RecordDict({"arrays": PARAMS}), client, "train", ttl=ttl, group_id=group)
    (id_,) = grid.push_messages([message])
    return str(id_)


def answer(desk: Desk, id_: str, folder: Path) -> None:
    """Let the daemon pass a client's answer on."""
    (step,) = [step for step in desk.steps if step.envelopes[0].metadata.message_id == id_]
    asked = Message(RecordDict(), 1, "train", group_id=step.envelopes[0].metadata.group_id)
    set_message_id(asked, id_)
    reply = Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=asked)
    set_message_id(reply, f"{id_}-r")
    envelope = encode(reply, BlobWriter(folder))
    desk.said[step.key].append(pb.StepReply(key=step.key, envelope=envelope, blob_dir=str(folder)))


def test_an_answer_comes_once(grid: FleetGrid, desk: Desk, tmp_path: Path) -> None:
    """Whoever is asked about later; and the end of its step tells the traffic."""
    first, second = push(grid, "i1"), push(grid, "i2", client=2)
    assert [step.key for step in desk.steps] == ["i1/train/0", "i2/train/0"]
    assert {step.deadline_s for step in desk.steps} == {30.0}
    assert list(grid.pull_messages([first, second])) == []
    answer(desk, second, tmp_path)
    assert list(grid.pull_messages([first])) == []
    (reply,) = grid.pull_messages([first, second])
    assert reply.metadata.reply_to_message_id == second
    assert reply.content["metrics"]["loss"] == 0.5
    assert list(grid.pull_messages([first, second])) == []
    desk.said["i2/train/0"].append(pb.StepEnd(key="i2/train/0", bytes_sent=8, bytes_received=9))
    assert list(grid.pull_messages([first])) == []
    assert (grid.bytes_sent, grid.bytes_received) == (8, 9)


def test_a_step_that_ends_without_an_answer_is_an_error(grid: FleetGrid, desk: Desk) -> None:
    """Its time is over, or its client is gone: nobody would ever hear of it else."""
    id_ = push(grid, "i1", client=4, ttl=5.0)
    desk.said["i1/train/0"].append(pb.StepEnd(key="i1/train/0"))
    (reply,) = grid.pull_messages([id_])
    assert (reply.metadata.src_node_id, reply.metadata.reply_to_message_id) == (4, id_)
    assert reply.has_error() and "no answer within 5 s" in reply.error.reason


def test_waiting_is_for_what_is_open(grid: FleetGrid, desk: Desk, tmp_path: Path) -> None:
    """Not for steps that are over or forgotten, and not at all if an answer is there."""
    first, second, third = push(grid, "i1"), push(grid, "i2"), push(grid, "i3")
    desk.said["i1/train/0"].append(pb.StepEnd(key="i1/train/0"))
    grid.forget("i2")
    answer(desk, third, tmp_path)
    assert list(grid.pull_messages([second])) == []
    grid.wait_for_replies([first])
    assert desk.waited_for == []
    grid.wait_for_replies([second])
    assert desk.waited_for == [{"i3/train/0"}]


def test_params_are_kept_while_a_group_needs_them(
    grid: FleetGrid, desk: Desk, tmp_path: Path
) -> None:
    """Groups end in any order; the newest one's file may be the next one's too."""
    push(grid, "i1")
    push(grid, "i2")
    (blob,) = {step.envelopes[0].records[0].arrays.blob.id for step in desk.steps}
    grid.forget("i1")
    grid.forget("i2")
    other = params_to_arrays({"w": np.ones(10_000, np.float32)})
    grid.push_messages([Message(RecordDict({"arrays": other}), 1, "train", group_id="i3")])
    push(grid, "i4")
    grid.forget("i3")
    told = [message.forget for message in desk.sent if message.HasField("forget")]
    assert [forget.group_id for forget in told] == ["i1", "i2", "i3"]
    (unneeded,) = [id_ for forget in told for id_ in forget.blob_ids]
    assert unneeded == desk.steps[2].envelopes[0].records[0].arrays.blob.id != blob
    assert blob_path(tmp_path, blob).exists()


def test_whom_a_group_went_to_is_known_after_a_restart(grid: FleetGrid) -> None:
    """Nobody else is asked then."""
    assert (grid.cohort_of("i7"), grid.cohort_of("i8")) == ([3], ())


def test_a_file_that_has_changed_since_it_arrived_is_not_believed(
    grid: FleetGrid, desk: Desk, tmp_path: Path
) -> None:
    """One flipped bit in the spool makes no update: it is that client's failure, with the cause."""
    large = params_to_arrays({"w": np.zeros(20_000, np.float32)})
    id_ = push(grid, "i1")
    message = Message(RecordDict(), 1, "train", group_id="i1")
    set_message_id(message, id_)
    reply = Message(RecordDict({"arrays": large}), reply_to=message)
    set_message_id(reply, f"{id_}-r")
    folder = tmp_path / "up"
    envelope = encode(reply, BlobWriter(folder))
    (file,) = folder.iterdir()
    data = bytearray(file.read_bytes())
    data[-9] ^= 4
    file.write_bytes(data)
    item = pb.StepReply(key="i1/train/0", envelope=envelope, blob_dir=str(folder))
    desk.said["i1/train/0"].append(item)
    (found,) = grid.pull_messages([id_])
    assert found.has_error() and "has changed on the disk" in found.error.reason


def test_an_id_says_nothing_of_the_cohort(desk: Desk, tmp_path: Path) -> None:
    """No order, no place and no count is in it; only the run's own worker makes it again."""

    def ids(secret: bytes, clients: range, group: str = "1") -> list[str]:
        grid = FleetGrid(desk, run_id=1, spool=tmp_path, quorum=0, secret=secret, cohorts={})  # type: ignore[arg-type]
        batch = [
            Message(RecordDict({"arrays": PARAMS}), client, "train", group_id=group)
            for client in clients
        ]
        return [str(id_) for id_ in grid.push_messages(batch)]

    found = ids(b"a", range(40))
    assert found == ids(b"a", range(40)) and found[:5] == ids(b"a", range(5))
    assert not {*found} & {*ids(b"b", range(40))} and not {*found} & {*ids(b"a", range(40), "2")}
    digits = [id_.removeprefix("1-") for id_ in found]
    assert len({*digits}) == 40 and digits != sorted(digits)
    stems = {(len(each), each[:4]) for each in digits}
    assert all(len(each) == 32 for each in digits) and len(stems) == 40, "no common stem"


def test_a_message_says_nothing_of_those_before_it(desk: Desk, tmp_path: Path) -> None:
    """All of a step are of the same moment, and none is smaller because there are more of them."""
    params = ArrayRecord([np.zeros(2000, np.float32)])
    steps = []
    for place, drawn in enumerate((range(5), range(300))):
        told = {"run_id": 1, "spool": tmp_path, "quorum": 0, "secret": b"s", "cohorts": {}}
        grid = FleetGrid(desk, announced_cohort=50, **told)  # type: ignore[arg-type]
        content = RecordDict({"arrays": params})
        grid.push_messages([Message(content, n, "train", group_id=str(place)) for n in drawn])
        steps.append(desk.steps[-1])
    for step in steps:
        assert len({each.metadata.created_at_s for each in step.envelopes}) == 1
    assert len({step.envelopes[0].records[0].arrays.WhichOneof("file") for step in steps}) == 1


def test_a_reply_says_how_its_client_s_line_is(desk: Desk, tmp_path: Path) -> None:
    """Slow, with its rate, or not; of clients that have not answered, what was known before is."""
    told: dict[str, Any] = {
        "run_id": 1,
        "spool": tmp_path,
        "quorum": 0,
        "secret": b"s",
        "cohorts": {},
    }
    grid = FleetGrid(desk, slow_lines={1: 10, 2: 20}, **told)  # type: ignore[arg-type]
    messages = [Message(RecordDict(), client, "train", group_id="1") for client in (1, 3)]
    replies = grid.send_and_receive(messages)
    (step,) = desk.steps
    for asked, rate in zip(step.envelopes, (0, 30), strict=True):
        envelope = pb.Envelope(metadata=asked.metadata)
        client = asked.metadata.dst_node_id
        envelope.metadata.reply_to_message_id = asked.metadata.message_id
        item = pb.StepReply(key=step.key, node_id=client, envelope=envelope, slow_bytes_per_s=rate)
        desk.said[step.key].append(item)
    desk.said[step.key].append(pb.StepEnd(key=step.key))
    assert len(list(replies)) == 2
    assert grid.slow_lines == {2: 20, 3: 30}


class Rounds(Traces):
    """Counts the spans of rounds."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []

    def round(self, run_id: int, group_id: str) -> Span:
        self.begun.append(group_id)
        span = Span()
        span.end = lambda: self.ended.append(group_id)  # type: ignore[method-assign]
        return span


def test_spans_of_rounds(desk: Desk, tmp_path: Path) -> None:
    """A round has one from its first message until it is done; those that never are end with the run,
    and there is a bound of them."""
    traces = Rounds()
    told: dict[str, Any] = {
        "run_id": 1,
        "spool": tmp_path,
        "quorum": 0,
        "secret": b"s",
        "cohorts": {},
    }
    grid = FleetGrid(desk, traces=traces, **told)  # type: ignore[arg-type]
    for group in ("1", "1", "2"):
        push(grid, group)
    grid.forget("1")
    grid.forget("3")
    assert (traces.begun, traces.ended) == (["1", "2"], ["1"])
    for number in range(SPANS_MAX):
        push(grid, f"more-{number}")
    assert len(traces.begun) - len(traces.ended) == SPANS_MAX
    grid.close()
    assert sorted(traces.begun) == sorted(traces.ended)


class Tree:
    """The clients 21 and 22 are behind the relay 2, called north."""

    has_relays = True

    def relay_of(self, client: int) -> int:
        return 2 if client > 20 else 0


@pytest.fixture
def tree(desk: Desk, tmp_path: Path) -> FleetGrid:
    """A grid with a relay."""
    desk.name_of = lambda client: f"north/{client}"  # type: ignore[attr-defined]
    return FleetGrid(
        desk, run_id=1, spool=tmp_path, quorum=0, secret=b"s", cohorts={}, relays=Tree()  # type: ignore[arg-type]
    )  # fmt: skip


def test_clients_of_a_relay_are_pushed_one_message(
    tree: FleetGrid, desk: Desk, tmp_path: Path
) -> None:
    """It has one id; its answer is an error for each client that failed, and one for the others."""
    content = RecordDict({"arrays": PARAMS})
    (id_,) = tree.push_messages([Message(content, n, "train", group_id="i1") for n in (21, 22)])
    (envelope,) = desk.steps[0].envelopes
    assert (envelope.metadata.dst_node_id, envelope.metadata.message_id) == (2, id_)
    asked = Message(RecordDict(), 2, "train", group_id="i1")
    set_message_id(asked, id_)
    about = {"clients": [22], "failed": [21], "codes": [1], "reasons": ["no"], "weights": [3.0]}
    answered = RecordDict(
        {RELAY_RECORD: ConfigRecord(about), "metrics": MetricRecord({"num-examples": 3.0})}
    )
    reply = Message(answered, reply_to=asked)
    set_message_id(reply, f"{id_}-r")
    folder = tmp_path / "reply"
    step = pb.StepReply(
        key="i1/train/0",
        node_id=2,
        envelope=encode(reply, BlobWriter(folder)),
        blob_dir=str(folder),
    )
    desk.said["i1/train/0"].append(step)
    failed, rest = tree.pull_messages([id_])
    assert failed.metadata.src_node_id == 21 and failed.error.reason == "behind north: no"
    assert rest.content["metrics"]["combined-clients"] == [22]
    assert {m.metadata.reply_to_message_id for m in (failed, rest)} == {id_}


def test_a_relay_that_does_not_answer_is_an_error_of_each_client(
    tree: FleetGrid, desk: Desk
) -> None:
    """Nobody waits for clients whose relay is gone."""
    content = RecordDict({"arrays": PARAMS})
    messages = [Message(content, n, "train", ttl=5.0, group_id="i1") for n in (21, 22)]
    (id_,) = tree.push_messages(messages)
    desk.said["i1/train/0"].append(pb.StepEnd(key="i1/train/0"))
    replies = list(tree.pull_messages([id_]))
    assert [reply.metadata.src_node_id for reply in replies] == [21, 22]
    assert all("behind north: no answer within 5 s" in reply.error.reason for reply in replies)
