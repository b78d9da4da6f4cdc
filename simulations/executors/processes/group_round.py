"""The run's side of a round: groups go out as files, what comes back becomes replies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ArrayRecord, Error, Message

from ....errors import MeadowError, StoreError
from ....flower.messages import arrays_to_params
from ....run.app_output import show_output
from ....strategies.algorithms.combined import ClientTable
from ....strategies.rounds.broadcast import Broadcast
from ....transport.blobs import blob_path
from ....transport.codec import decode, encode
from ....transport.content import pack_content, unpack_content
from ....transport.fleet_pb2 import Envelope
from ....transport.writer import BlobWriter
from ...population.clients import SimulatedClients
from ..contract import EventSink
from .group_files import (
    BROADCAST,
    MESSAGES,
    REPLIES,
    STATES,
    SUMS,
    GroupJob,
    Report,
    read_frames,
    write_frames,
)
from .groups import ClientTimes, Schedule, cut, groups_worth
from .partial import Partial, Total, clipping_by_server, sums_in

__all__ = ["GroupRound", "GroupTask"]

APP_CRASHED = 8
"""Flower's error code for a client app that died. Source: flwr 1.41, common/constant.py."""
ATTEMPTS_MAX = 3
SINGLE_CLIENTS_MAX = 16
"""Clients of a group that reply one by one: what is repeated if its worker dies, and what the
replies take."""
SUMS_BYTES_MAX = 64 << 20
"""What the sums of a round's groups may take beyond one group a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    """An attempt at a group."""

    round: GroupRound
    group: int
    inbox: Path
    outbox: Path


class GroupRound:
    """One call of an executor: its messages in groups, each of which is answered once."""

    def __init__(
        self,
        messages: Sequence[Message],
        clients: SimulatedClients,
        folder: Path,
        *,
        workers: int,
        groups_per_worker: int,
        combined_clients_max: int,
        combine: bool,
        times: ClientTimes,
        sink: EventSink,
    ) -> None:
        """Cut the cohort and write what all groups share.

        Raises:
            ProtocolError: the content of a broadcast cannot be sent.
            StoreError: the folder cannot be written.
        """
        self._messages = messages
        self._clients = clients
        self._sink = sink
        self._times = times
        self._folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir(parents=True)
        self._ids = _node_ids(messages)
        self._total: Total | None = None
        self._sum_bytes = 0
        if isinstance(messages, Broadcast):
            self._write_broadcast(messages, combine)
        self._groups = self._cut(workers, groups_per_worker, combined_clients_max)
        self._at_once = len(self._groups) <= workers
        self._attempts = [0] * len(self._groups)
        self._open = set(range(len(self._groups)))
        self.schedule = Schedule(
            [times.expected_s(self._ids_of(group)) for group in range(len(self._groups))]
        )

    @property
    def done(self) -> bool:
        """Whether every group is settled."""
        return not self._open

    def next_task(self) -> GroupTask:
        """Write the inbox of the group that is to begin next.

        Raises:
            StoreError: the folder cannot be written.
        """
        # groups that all begin at once go to the same workers each round, which still have their data
        group = self.schedule.next(in_order=self._at_once)
        self._attempts[group] += 1
        inbox = self._folder / f"{group}-{self._attempts[group]}-in"
        outbox = self._folder / f"{group}-{self._attempts[group]}-out"
        try:
            inbox.mkdir()
            outbox.mkdir()
        except OSError as error:
            raise StoreError(f"{inbox} cannot be made: {error.strerror}") from error
        self._write_inbox(group, inbox)
        return GroupTask(round=self, group=group, inbox=inbox, outbox=outbox)

    def take(self, task: GroupTask) -> list[Message]:
        """Read what a worker left of a group; return the replies that are ready now.

        Raises:
            StoreError, ProtocolError: the files are damaged.
        """
        outbox, group = task.outbox, task.group
        report = Report.read(outbox)
        show_output(report.output)
        for node_id, text in report.tracebacks:
            self._sink.traceback(node_id, text)
        for kind, detail in report.events:
            self._sink.event(kind, detail)
        self._times.add(dict(report.seconds))
        replies = [
            decode(Envelope.FromString(data), lambda blob: blob_path(outbox, blob.id))
            for _, data in read_frames(outbox / REPLIES)
        ]
        for node_id, state in read_frames(outbox / STATES):
            self._clients.keep_packed_state(node_id, state)
        if self._total is not None:
            self._total.add(group, _partial_in(outbox, report))
        self._open.discard(group)
        shutil.rmtree(outbox, ignore_errors=True)  # what is still needed of it is open
        shutil.rmtree(task.inbox, ignore_errors=True)
        return replies

    def lose(self, task: GroupTask, cause: str) -> list[Message]:
        """Let a group whose worker died begin again, or answer for its clients at last."""
        attempts = self._attempts[task.group]
        nodes = self._ids_of(task.group)
        detail = {"cause": cause, "clients": [int(node) for node in nodes], "attempt": attempts}
        self._sink.event("worker_lost", detail)
        shutil.rmtree(task.inbox, ignore_errors=True)
        shutil.rmtree(task.outbox, ignore_errors=True)
        if attempts < ATTEMPTS_MAX:
            self.schedule.put_back(task.group)
            return []
        self._open.discard(task.group)
        if self._total is not None:
            self._total.add(task.group, None)
        reason = f"{attempts} times in a row, the worker {cause}"
        places = self._groups[task.group]
        return [
            Message(Error(APP_CRASHED, reason), reply_to=self._messages[place]) for place in places
        ]

    def finish(self) -> Iterator[Message]:
        """Yield the reply that stands for all clients whose updates were added up."""
        finished = self._total.finish() if self._total is not None else None
        if finished is not None and isinstance(self._messages, Broadcast):
            clients, content = finished
            yield Message(content, reply_to=self._messages.to(clients[:1])[0])

    def close(self) -> None:
        """Remove all files; replies that were read stay readable."""
        shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------ parts of it

    def _write_broadcast(self, messages: Broadcast, combine: bool) -> None:
        arrays = list(messages.content.array_records.values())
        packed = pack_content(messages.content, BlobWriter(self.shared, fsync=False))
        write_frames(self.shared / BROADCAST, [(0, packed)])
        if combine and messages.message_type == "train" and len(arrays) == 1:
            private = clipping_by_server(messages.content) is not None
            self._total = Total(arrays_to_params(arrays[0]), exact=private)
            self._sum_bytes = 8 * _values_in(arrays[0])

    def _cut(self, workers: int, groups_per_worker: int, combined_clients_max: int) -> list[range]:
        count = len(self._ids)
        if len(set(self._ids)) < count:
            return [range(count)]  # a client's second message needs what its first one left
        most = SUMS_BYTES_MAX // (workers * self._sum_bytes) if self._sum_bytes else count
        if self._times.known:
            round_s = self._times.expected_s(self._ids) / workers
            most = min(most, groups_worth(round_s, values=self._sum_bytes // 8))
        return cut(
            count,
            workers=workers,
            groups_per_worker=max(1, min(groups_per_worker, most)),
            clients_max=SINGLE_CLIENTS_MAX if self._total is None else combined_clients_max,
        )

    def _ids_of(self, group: int) -> Sequence[int]:
        places = self._groups[group]
        return self._ids[places.start : places.stop]

    def _write_inbox(self, group: int, inbox: Path) -> None:
        nodes = [int(node) for node in self._ids_of(group)]
        kept = ((node, self._clients.packed_state(node)) for node in dict.fromkeys(nodes))
        write_frames(inbox / STATES, ((node, state) for node, state in kept if state))
        if isinstance(self._messages, Broadcast):
            GroupJob(
                clients=nodes,
                combine=self._total is not None,
                message_type=self._messages.message_type,
                group_id=self._messages.group_id,
                id_prefix=self._messages.id_prefix,
            ).write(inbox)
            return
        GroupJob(clients=nodes).write(inbox)
        places = self._groups[group]
        blobs = BlobWriter(inbox, fsync=False)
        packed = ((place, _pack(self._messages[place], blobs)) for place in places)
        write_frames(inbox / MESSAGES, packed)


def _node_ids(messages: Sequence[Message]) -> Sequence[int]:
    if isinstance(messages, Broadcast):
        return messages.clients
    return [message.metadata.dst_node_id for message in messages]


def _pack(message: Message, blobs: BlobWriter) -> bytes:
    try:
        return encode(message, blobs).SerializeToString()
    except MeadowError as error:
        node_id = message.metadata.dst_node_id
        raise type(error)(f"the message to client {node_id} cannot be sent: {error}") from error


def _partial_in(outbox: Path, report: Report) -> Partial | None:
    if not report.table_clients:
        return None
    table = ClientTable()
    table.add(report.table_clients, report.table_examples, report.table_metrics)
    ((_, packed),) = read_frames(outbox / SUMS)
    sums, rests = sums_in(unpack_content(packed, outbox))
    return Partial(sums=sums, rests=rests, weights=report.weights, table=table)


def _values_in(arrays: ArrayRecord) -> int:
    sizes = [1] * len(arrays)
    for place, array in enumerate(arrays.values()):
        for length in array.shape:
            sizes[place] *= length
    return sum(sizes)
