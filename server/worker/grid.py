"""`FleetGrid`: Flower's Grid over Meadow's daemon, used inside a run worker.

Every batch of messages is a step with a key that a restarted worker computes again: (group,
message type, how often so far). So a worker that repeats itself gets the recorded replies, and an
app that never commits a round (a plain Flower app) is replayed from its first message on.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from flwr.app import Error, Message, RecordDict

from ...flower.messages import rebuild_message, set_message_id
from ...flower.run_grid import RunGrid
from ...transport import fleet_pb2 as pb
from ...transport.blobs import blob_path, blobs_of, require_intact
from ...transport.codec import BlobWriter, decode, encode
from ...transport.packed import PACKED_BYTES_MAX
from .channel import Channel

__all__ = ["FleetGrid"]

NO_DEADLINE_S = 30 * 86400.0
REPLY_UNREADABLE = 4
"""Flower's code for a reply that is not available. Source: flwr 1.41, ErrorCode."""
REASON_CHARS_MAX = 500
PACKED_TOGETHER_MAX = 1 << 20
"""A small model travels in the messages of a step while all of them take no more than this."""


class FleetGrid(RunGrid):
    """Sends messages to real clients and yields their replies as they arrive."""

    def __init__(
        self,
        channel: Channel,
        *,
        run_id: int,
        spool: Path,
        quorum: int,
        cohorts: Mapping[str, Sequence[int]],
        secret: bytes,
        tags: Sequence[str] = (),
        announced_cohort: int = 0,
    ) -> None:
        """Send through `channel`; `announced_cohort` is how many clients a cohort has, as clients are told,
        where who was drawn is a secret, and else 0."""
        self._channel = channel
        self._announced_cohort = announced_cohort
        super().__init__(run_id)
        self._spool = spool
        self._writer = BlobWriter(spool)
        self._blobs: dict[str, set[str]] = {}
        self._newest = ""
        self._done: set[str] = set()
        self._quorum = quorum
        self._cohorts = cohorts
        self._secret = secret
        self.tags = tuple(tags)
        """Whom the daemon tells of: clients that have all of them."""
        self._pushes: Counter[tuple[str, str]] = Counter()
        self._pushed: dict[str, dict[str, Message]] = {}
        """The steps of pushed messages that are not over: who has not answered, without content."""
        self._arrived: dict[str, Message] = {}
        self.bytes_sent = 0
        self.bytes_received = 0

    # ------------------------------------------------------------------ Flower's interface

    def get_node_ids(self) -> Iterable[int]:
        """Return the clients that are there, or will be back within their lease."""
        return self._channel.nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their replies are fetched with `pull_messages`."""
        batch = list(messages)
        if not batch:
            return []
        deadline_s = min(message.metadata.ttl for message in batch)
        key, ids = self._begin(batch, quorum=0, deadline_s=deadline_s)
        self._pushed[key] = {
            message.metadata.message_id: rebuild_message(message.metadata, RecordDict())
            for message in batch
        }
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived to these messages, each once.

        No answer within a message's time to live, or its client's lease, is an error reply.
        """
        for key in list(self._pushed):
            while (item := self._channel.ready_of(key)) is not None:
                if isinstance(item, pb.StepReply):
                    self._arrive(key, self._decode(item))
                else:
                    self._end(key, item)
                    break
        return [self._arrived.pop(id_) for id_ in message_ids if id_ in self._arrived]

    def wait_for_replies(self, message_ids: Iterable[str]) -> None:
        """Wait, without polling, until one may have come, or clients have come or gone."""
        if not any(id_ in self._arrived for id_ in message_ids):
            self._channel.wait_for_any(self._pushed)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages now and return an iterator over the replies, in order of arrival.

        The iterator ends when everybody has answered, or when the quorum is met and `timeout`
        seconds have passed (or nobody who is missing shows a sign of life).
        """
        batch = list(messages)
        if not batch:
            return iter(())
        key, _ = self._begin(
            batch, quorum=self._quorum, deadline_s=NO_DEADLINE_S if timeout is None else timeout
        )
        return self._replies(key)

    # ------------------------------------------------------------------ beyond Flower's

    def wait_for_nodes(self, count: int) -> list[int]:
        """Wait, without polling, until `count` clients are there."""
        return self._channel.wait_for_nodes(count)

    def name_of(self, client: int) -> str | None:
        """Return the name of a client's site."""
        return self._channel.name_of(client)

    def cohort_of(self, group_id: str) -> Sequence[int]:
        """Return who was drawn for a round that was begun before this worker, if it was."""
        return self._cohorts.get(group_id, ())

    def is_stopping(self) -> bool:
        """Whether the run is to end."""
        return self._channel.stopping

    def forget(self, group_id: str) -> None:
        """A group's messages, replies and files are no longer needed; who works on them stops."""
        for key in [key for key in self._pushed if key.startswith(f"{group_id}/")]:
            self._channel.close_step(key)
            del self._pushed[key]
        self._done.add(group_id)
        unneeded: set[str] = set()
        for group in self._done & self._blobs.keys() - {self._newest}:
            # the newest group's model is the next group's first one
            old = self._blobs.pop(group)
            unneeded |= old.difference(*self._blobs.values())
        self._done &= self._blobs.keys()
        forget = pb.Forget(group_id=group_id, blob_ids=sorted(unneeded))
        self._channel.send(pb.WorkerMessage(forget=forget))

    # ------------------------------------------------------------------ steps

    def _begin(
        self, batch: list[Message], *, quorum: int, deadline_s: float
    ) -> tuple[str, list[str]]:
        head = batch[0].metadata
        name = (head.group_id, head.message_type)
        key = f"{head.group_id}/{head.message_type}/{self._pushes[name]}"
        self._pushes[name] += 1
        together = self._announced_cohort or len(batch)
        self._writer.packed_bytes_max = min(PACKED_BYTES_MAX, PACKED_TOGETHER_MAX // together)
        envelopes, ids = [], []
        for index, message in enumerate(batch):
            set_message_id(message, self._id_of(key, index))
            envelope = encode(message, self._writer)
            # messages are made one after another: when would tell how many are in between
            envelope.metadata.created_at_s = head.created_at
            envelopes.append(envelope)
            ids.append(message.metadata.message_id)
        self._remember(head.group_id, envelopes)
        step = pb.Step(key=key, envelopes=envelopes, quorum=quorum, deadline_s=deadline_s)
        self._channel.send(pb.WorkerMessage(step=step))
        return key, ids

    def _id_of(self, key: str, index: int) -> str:
        """Return a message's id: the same for a restarted worker, and for nobody else of any use.

        A client that could tell its place in the cohort from it would learn who else was drawn.
        """
        made = hmac.digest(self._secret, f"{key}/{index}".encode(), "sha256")
        return f"{self._run.run_id}-{made[:16].hex()}"

    def _remember(self, group_id: str, envelopes: list[pb.Envelope]) -> None:
        self._newest = group_id
        found = {blob.id for envelope in envelopes for blob in blobs_of(envelope)}
        self._blobs.setdefault(group_id, set()).update(found)

    def _arrive(self, key: str, reply: Message) -> None:
        id_ = reply.metadata.reply_to_message_id
        self._pushed[key].pop(id_, None)
        self._arrived[id_] = reply

    def _end(self, key: str, item: pb.StepEnd) -> None:
        """A step of pushed messages is over: who has not answered by now will not."""
        self.bytes_sent, self.bytes_received = item.bytes_sent, item.bytes_received
        for id_, asked in self._pushed.pop(key).items():
            reason = f"no answer within {asked.metadata.ttl:g} s, or no sign of life"
            reply = Message(Error(REPLY_UNREADABLE, reason), reply_to=asked)
            set_message_id(reply, f"{id_}-r")
            self._arrived[id_] = reply
        self._channel.close_step(key)

    def _replies(self, key: str) -> Iterator[Message]:
        while isinstance(item := self._channel.next_of(key), pb.StepReply):
            yield self._decode(item)
        self.bytes_sent, self.bytes_received = item.bytes_sent, item.bytes_received
        self._channel.close_step(key)

    def _decode(self, item: pb.StepReply) -> Message:
        """Return a client's reply; if it is malformed, that is the client's failure."""
        folder = Path(item.blob_dir)

        def path_of(blob: pb.Blob) -> Path:
            return blob_path(folder, blob.id)

        try:
            for blob in blobs_of(item.envelope):
                require_intact(path_of(blob), blob)
            return decode(item.envelope, path_of)
        except Exception as error:
            # Whatever a peer's bytes bring about, the run goes on.
            text = f"the reply cannot be read: {error}"[:REASON_CHARS_MAX]
            failure = pb.AppError(code=REPLY_UNREADABLE, reason=text)
            return decode(pb.Envelope(metadata=item.envelope.metadata, error=failure), path_of)
