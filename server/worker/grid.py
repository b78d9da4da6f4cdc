"""`FleetGrid`: Flower's Grid over Meadow's daemon, for a run worker.

Every batch of messages is a step. Its key (group, message type, number of earlier batches of both)
is the same in a restarted worker, which therefore gets the recorded replies. An app that never
commits a round (a plain Flower app) is replayed from its first message on.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict

from ...errors import ConfigError
from ...flower.messages import rebuild_message, set_message_id
from ...flower.run_grid import RunGrid
from ...privacy.dp.mechanisms.clipping import Clipping
from ...transport import fleet_pb2 as pb
from ...transport.blobs import blob_path, blobs_of, require_intact
from ...transport.codec import BlobWriter, decode, encode
from ...transport.packed import PACKED_BYTES_MAX
from ...transport.relaying import RELAY_RECORD
from ...transport.spans import NO_TRACES, Span, Traces
from .relayed_replies import replies_behind, reply_of_one

__all__ = ["SPANS_MAX", "FleetGrid"]

NO_DEADLINE_S = 30 * 86400.0
REPLY_UNREADABLE = 4
"""Flower's code for a reply that is not available. Source: flwr 1.41, ErrorCode."""
REASON_CHARS_MAX = 500
_REFUSED = (
    "clients are behind a relay, which adds up the updates of clients that all get the same message, and "
    "this run {}: connect these clients to the server itself, or choose others by selection.tags"
)
SPANS_MAX = 1024
"""Rounds that are traced at once; an app may begin many and finish none."""
PACKED_TOGETHER_MAX = 8 << 20
"""Bound of the tensors inside the messages of one step, in bytes; others travel as files."""


class GridChannel(Protocol):
    """What a grid needs of a run worker's channel."""

    @property
    def stopping(self) -> bool: ...
    @property
    def nodes(self) -> list[int]: ...
    def name_of(self, client: int) -> str | None: ...
    def wait_for_nodes(self, count: int) -> list[int]: ...
    def send(self, message: pb.WorkerMessage) -> None: ...
    def next_of(self, key: str) -> pb.StepReply | pb.StepEnd: ...
    def ready_of(self, key: str) -> pb.StepReply | pb.StepEnd | None: ...
    def wait_for_any(self, keys: Iterable[str]) -> None: ...
    def close_step(self, key: str) -> None: ...


class Relays(Protocol):
    """Which clients are behind relays."""

    @property
    def has_relays(self) -> bool: ...
    def relay_of(self, client: int) -> int: ...


class FleetGrid(RunGrid):
    """Sends messages to real clients and yields their replies as they arrive."""

    def __init__(
        self,
        channel: GridChannel,
        *,
        run_id: int,
        spool: Path,
        quorum: int,
        cohorts: Mapping[str, Sequence[int]],
        secret: bytes,
        tags: Sequence[str] = (),
        announced_cohort: int = 0,
        relays: Relays | None = None,
        without_relays: str | None = None,
        slow_lines: Mapping[int, int] | None = None,
        traces: Traces = NO_TRACES,
    ) -> None:
        """Send through `channel`; where the sample is secret, `announced_cohort` is the cohort's
        size that instructions announce, and otherwise 0. `relays` knows which clients are behind relays;
        `without_relays` says why a run cannot have any. `slow_lines` is what is known of lines before."""
        self._channel = channel
        self._announced_cohort = announced_cohort
        self._traces = traces
        self._rounds: dict[str, Span] = {}
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
        """The daemon reports only clients that have all of these tags."""
        self._pushes: Counter[tuple[str, str]] = Counter()
        self._pushed: dict[str, dict[str, Message]] = {}
        """The open steps of pushed messages: by step, the unanswered messages without content."""
        self._arrived: dict[str, list[Message]] = {}
        """By message: its replies, several if a relay has answered for several clients."""
        self._relays, self._without_relays = relays, without_relays
        self._behind: dict[str, tuple[Sequence[int], Clipping | None]] = {}
        """By message to a relay: the clients that it is for, and how it is to clip their updates."""
        self.slow_lines = dict(slow_lines or {})
        """The clients whose lines are slow, with the rate in bytes per second; a client's reply says it anew."""
        self.bytes_sent = 0
        self.bytes_received = 0

    # ------------------------------------------------------------------ Flower's interface

    def get_node_ids(self) -> Iterable[int]:
        """Return the clients that are connected or within their lease."""
        nodes = self._channel.nodes
        self._refuse_relays()
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their replies are fetched with `pull_messages`.

        Messages to clients behind the same relay have one id.
        """
        batch = list(messages)
        if not batch:
            return []
        deadline_s = min(message.metadata.ttl for message in batch)
        key, sent = self._begin(batch, quorum=0, deadline_s=deadline_s)
        self._pushed[key] = {
            message.metadata.message_id: rebuild_message(message.metadata, RecordDict())
            for message in sent
        }
        return list(self._pushed[key])

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived to these messages, each once.

        A message whose time to live, or whose client's lease, has passed gets an error reply.
        """
        for key in list(self._pushed):
            while (item := self._channel.ready_of(key)) is not None:
                if isinstance(item, pb.StepReply):
                    self._arrive(key, item)
                else:
                    self._end(key, item)
                    break
        return [
            reply for id_ in message_ids if id_ in self._arrived for reply in self._arrived.pop(id_)
        ]

    def wait_for_replies(self, message_ids: Iterable[str]) -> None:
        """Wait, without polling, until a reply may have arrived or the available clients change."""
        if not any(id_ in self._arrived for id_ in message_ids):
            self._channel.wait_for_any(self._pushed)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages now and return an iterator over the replies, in order of arrival.

        The iterator ends when all clients have answered, or when the quorum is met and `timeout`
        seconds, or the leases of all missing clients, have passed.
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
        """Wait, without polling, until `count` clients are available; return all of them."""
        nodes = self._channel.wait_for_nodes(count)
        self._refuse_relays()
        return nodes

    @property
    def adds_exactly(self) -> bool:
        """As `combines_updates`: relays add up without rounding errors."""
        return self._has_relays

    @property
    def combines_updates(self) -> bool:
        """Whether a reply may stand for many clients: those behind a relay."""
        self._refuse_relays()
        return self._has_relays

    def name_of(self, client: int) -> str | None:
        """Return the name of a client's site."""
        return self._channel.name_of(client)

    def cohort_of(self, group_id: str) -> Sequence[int]:
        """Return the cohort of a round that an earlier worker began, empty for any other round."""
        return self._cohorts.get(group_id, ())

    def is_stopping(self) -> bool:
        """Return whether the run is to end."""
        return self._channel.stopping

    def forget(self, group_id: str) -> None:
        """Drop a group's messages, replies and files; clients stop working on them."""
        for key in [key for key in self._pushed if key.startswith(f"{group_id}/")]:
            self._channel.close_step(key)
            for id_ in self._pushed.pop(key):
                self._behind.pop(id_, None)
        if group_id in self._rounds:
            self._rounds.pop(group_id).end()
        self._done.add(group_id)
        unneeded: set[str] = set()
        for group in self._done & self._blobs.keys() - {self._newest}:
            # the newest group's model is the next group's first one
            old = self._blobs.pop(group)
            unneeded |= old.difference(*self._blobs.values())
        self._done &= self._blobs.keys()
        forget = pb.Forget(group_id=group_id, blob_ids=sorted(unneeded))
        self._channel.send(pb.WorkerMessage(forget=forget))

    def close(self) -> None:
        """End the spans of rounds that were not finished."""
        for span in self._rounds.values():
            span.end()
        self._rounds.clear()

    # ------------------------------------------------------------------ steps

    def _begin(
        self, batch: list[Message], *, quorum: int, deadline_s: float
    ) -> tuple[str, list[Message]]:
        """Open a step; return its key, and the messages as they are sent."""
        head = batch[0].metadata
        name = (head.group_id, head.message_type)
        key = f"{head.group_id}/{head.message_type}/{self._pushes[name]}"
        self._pushes[name] += 1
        batch, behind = self._through_relays(batch, deadline_s)
        together = self._announced_cohort or len(batch)
        self._writer.packed_bytes_max = min(PACKED_BYTES_MAX, PACKED_TOGETHER_MAX // together)
        if head.group_id not in self._rounds and len(self._rounds) < SPANS_MAX:
            self._rounds[head.group_id] = self._traces.round(self._run.run_id, head.group_id)
        envelopes = []
        for index, message in enumerate(batch):
            set_message_id(message, self._id_of(key, index))
            envelope = encode(message, self._writer)
            # each message's own time would reveal its position in the cohort
            envelope.metadata.created_at_s = head.created_at
            envelopes.append(envelope)
            if clients := behind.get(message.metadata.dst_node_id):
                self._behind[message.metadata.message_id] = clients, _clipping_in(message)
        self._remember(head.group_id, envelopes)
        step = pb.Step(key=key, envelopes=envelopes, quorum=quorum, deadline_s=deadline_s)
        self._channel.send(pb.WorkerMessage(step=step))
        return key, batch

    def _through_relays(
        self, batch: list[Message], deadline_s: float
    ) -> tuple[list[Message], dict[int, list[int]]]:
        """Return the messages with one to each relay instead of those to the clients behind it, and
        these clients by relay.

        Raises:
            ConfigError: clients behind one relay are sent different messages.
        """
        head, direct, behind = batch[0], list[Message](), dict[int, list[int]]()
        for message in batch:
            relay = self.relay_of(message.metadata.dst_node_id)
            if not relay:
                direct.append(message)
                continue
            if message.content is not head.content:
                raise ConfigError(_REFUSED.format("sends different messages to its clients"))
            behind.setdefault(relay, []).append(message.metadata.dst_node_id)
        for relay, clients in sorted(behind.items()):
            known = ConfigRecord({"clients": clients, "deadline-s": deadline_s})
            content = RecordDict({**head.content, RELAY_RECORD: known})
            kind, group, ttl = (
                head.metadata.message_type,
                head.metadata.group_id,
                head.metadata.ttl,
            )
            direct.append(Message(content, relay, kind, group_id=group, ttl=ttl))
        return direct, behind

    @property
    def _has_relays(self) -> bool:
        return self._relays is not None and self._relays.has_relays

    def relay_of(self, client: int) -> int:
        """Return the relay that a client is behind, 0 for none."""
        return 0 if self._relays is None else self._relays.relay_of(client)

    def _refuse_relays(self) -> None:
        if self._without_relays is not None and self._has_relays:
            raise ConfigError(_REFUSED.format(self._without_relays))

    def _id_of(self, key: str, index: int) -> str:
        """Return a message's id, which is the same in a restarted worker.

        It is a keyed hash, as its position in the cohort would tell a client about the others.
        """
        made = hmac.digest(self._secret, f"{key}/{index}".encode(), "sha256")
        return f"{self._run.run_id}-{made[:16].hex()}"

    def _remember(self, group_id: str, envelopes: list[pb.Envelope]) -> None:
        self._newest = group_id
        found = {blob.id for envelope in envelopes for blob in blobs_of(envelope)}
        self._blobs.setdefault(group_id, set()).update(found)

    def _arrive(self, key: str, item: pb.StepReply) -> None:
        id_ = item.envelope.metadata.reply_to_message_id
        self._pushed[key].pop(id_, None)
        self._arrived[id_] = list(self._single(item.node_id, self._decode(item)))

    def _end(self, key: str, item: pb.StepEnd) -> None:
        """End a step of pushed messages: those without an answer get an error reply."""
        self.bytes_sent, self.bytes_received = item.bytes_sent, item.bytes_received
        for id_, message in self._pushed.pop(key).items():
            reason = f"no answer within {message.metadata.ttl:g} s, or no sign of life"
            reply = Message(Error(REPLY_UNREADABLE, reason), reply_to=message)
            set_message_id(reply, f"{id_}-r")
            self._arrived[id_] = list(self._single(message.metadata.dst_node_id, reply))
        self._channel.close_step(key)

    def _replies(self, key: str) -> Iterator[Message]:
        while isinstance(item := self._channel.next_of(key), pb.StepReply):
            self.slow_lines.pop(item.node_id, None)
            if item.slow_bytes_per_s:
                self.slow_lines[item.node_id] = item.slow_bytes_per_s
            yield from self._single(item.node_id, self._decode(item))
        self.bytes_sent, self.bytes_received = item.bytes_sent, item.bytes_received
        self._channel.close_step(key)

    def _single(self, node_id: int, reply: Message) -> Iterator[Message]:
        """Yield a reply; of a relay's, errors of its clients, and what stands for the others."""
        behind = self._behind.pop(reply.metadata.reply_to_message_id, None)
        if behind is None:
            yield reply_of_one(reply) if self._has_relays else reply
            return
        clients, clipping = behind
        name = (self._channel.name_of(clients[0]) or "").rpartition("/")[0]
        yield from replies_behind(
            reply, clients, relay=name or f"relay {node_id}", clipping=clipping
        )

    def _decode(self, item: pb.StepReply) -> Message:
        """Return a client's reply; a malformed one becomes an error reply."""
        folder = Path(item.blob_dir)

        def path_of(blob: pb.Blob) -> Path:
            return blob_path(folder, blob.id)

        try:
            for blob in blobs_of(item.envelope):
                require_intact(path_of(blob), blob)
            return decode(item.envelope, path_of)
        except Exception as error:
            # No reply of a client may end the run.
            text = f"the reply cannot be read: {error}"[:REASON_CHARS_MAX]
            failure = pb.AppError(code=REPLY_UNREADABLE, reason=text)
            return decode(pb.Envelope(metadata=item.envelope.metadata, error=failure), path_of)


def _clipping_in(message: Message) -> Clipping | None:
    """Return how a relay is to clip the updates of its clients."""
    is_training = message.metadata.message_type == MessageType.TRAIN
    return Clipping.by_server(
        message.content.config_records.get("config") or {} if is_training else {}
    )
