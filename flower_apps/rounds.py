"""Rows of metrics.jsonl for an app that keeps none itself, made of the messages that go by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from flwr.app import Message, MessageType

from ..errors import NOTHING_TO_EVALUATE
from ..strategies.algorithms.combined import clients_of
from ..strategies.algorithms.metrics import MetricMeans, Metrics, scalars_of
from ..strategies.rounds.failures import failure_detail, printable
from ..strategies.rounds.recorder import Row
from .answers import Answer, legacy_metrics, words_in

__all__ = ["WEIGHT_KEY", "RoundWatch", "Traffic"]

WEIGHT_KEY = "num-examples"
"""Flower's name for the number by which a reply's metrics are weighted."""

WEIGHT_MAX = 1e9
GROUP_DIGITS_MAX = 9

Traffic = tuple[int, int]
"""Bytes of tensors sent and received so far."""


COUNTED = (MessageType.TRAIN, MessageType.EVALUATE, MessageType.QUERY)
"""Kinds of messages that belong to a round."""


@dataclass(slots=True, kw_only=True)
class _Round:
    number: int
    said: int | None
    """What the app calls it: a second strategy in the same app begins at 1 again."""
    began_s: float
    traffic: Traffic
    asked: set[tuple[str, int]] = field(default_factory=set)
    """Who was asked for what, as ("train.adapter", client)."""
    kinds: set[str] = field(default_factory=set)
    answered: dict[str, set[int]] = field(default_factory=lambda: {kind: set() for kind in COUNTED})
    failed: dict[tuple[str, int], Mapping[str, Any] | None] = field(default_factory=dict)
    """Which clients failed at which kind of message, and the event's text; None before any reply."""
    means: dict[str, MetricMeans] = field(
        default_factory=lambda: {kind: MetricMeans() for kind in COUNTED}
    )
    server: Metrics = field(default_factory=dict)
    aggregated: dict[str, Metrics] = field(default_factory=dict)
    open_batches: int = 0

    def begin_training(self, batch: Sequence[Message]) -> None:
        """Drop an evaluation of the first params, which came before any training."""
        trains = MessageType.TRAIN
        if kind_of(batch[0]) != trains or trains in self.kinds:
            return
        self.means[MessageType.EVALUATE] = MetricMeans()
        self.asked = {each for each in self.asked if kind_in(each[0]) != MessageType.EVALUATE}

    def row(self, *, now_s: float, traffic: Traffic) -> Row:
        main = MessageType.TRAIN if self.answered[MessageType.TRAIN] else None
        answered = self.answered[main] if main else set().union(*self.answered.values())
        missed = {client for kind, client in self.failed if main in (kind, None)}
        row: dict[str, Any] = {
            "round": self.number,
            "duration_s": now_s - self.began_s,
            "clients": len(answered - missed),
            "failures": len({client for _, client in self.failed}),
            "train": self._metrics(MessageType.TRAIN),
            "evaluate": self._metrics(MessageType.EVALUATE),
            "server": dict(self.server),
            "bytes_sent": traffic[0] - self.traffic[0],
            "bytes_received": traffic[1] - self.traffic[1],
            "privacy": None,
        }
        if MessageType.QUERY in self.kinds:
            row["query"] = self._metrics(MessageType.QUERY)
        return row

    def _metrics(self, kind: str) -> Metrics:
        return {**self.means[kind].means(), **self.aggregated.get(kind, {})}


class RoundWatch:
    """Watches an app's messages and reports each round at its end.

    A message says its round by a "server-round" in a config record, or by a group id that is a
    number, as those of Flower's older workflows. A round begins with a train message of another
    number than before, or an evaluate or query message of a later one; where messages have no
    number, when a client is asked for the same thing again. It is over when the next one begins,
    or at `complete`. Rounds are numbered upwards, whatever the app does.

    The metrics of a row are the means of what clients report, weighted by `weight_key`; a reply
    without a usable weight counts as one example. A client that answers with an error, or not at
    all although the app waited for it, is a failure, in training, evaluation or a query; a row's
    "clients" are those whose training counts, or who answered where nothing is trained. Methods
    may be called from several threads.
    """

    def __init__(
        self,
        on_round: Callable[[Row], None],
        *,
        clock: Callable[[], float],
        traffic: Callable[[], Traffic],
        on_answer: Callable[[Answer], None] = lambda answer: None,
        on_failure: Callable[[Mapping[str, Any]], None] = lambda detail: None,
    ) -> None:
        """`on_failure` is called with the detail of the event "client_failed" of each client that failed."""
        self._on_failure = on_failure
        self._on_round = on_round
        self._on_answer = on_answer
        self._clock = clock
        self._traffic = traffic
        self._lock = RLock()
        self._round: _Round | None = None
        self._last_number = 0
        self._pushed: dict[str, tuple[str, int]] = {}
        """Kinds and clients of messages were sent in this round, and whose reply nobody has pulled."""
        self.weight_key = WEIGHT_KEY
        self.asked = self.answers = 0
        """Messages that were sent so far, and replies with content."""
        self.errors: dict[str, Counter[int]] = {}
        """Error replies: their text, the clients, and how often."""

    def sending(self, batch: Iterable[Message]) -> None:
        """Note messages that are sent; if they begin a round, the one before has ended."""
        with self._lock:
            counted = [m for m in batch if kind_of(m) in COUNTED]
            self.asked += len(counted)
            if not counted:
                return
            said = _number_in(counted[0])
            if self._is_new(counted, said):
                self.complete()
                self._begin(said)
            now = self._round
            if now is None:
                return
            if now.said is None:
                now.begin_training(counted)
                now.said, now.number = said, max(now.number, said or 0)
                self._last_number = now.number
            now.asked.update(_asked(message) for message in counted)
            now.kinds.update(kind_of(message) for message in counted)

    def pushed(self, ids: Iterable[str], batch: Iterable[Message]) -> None:
        """Note under which ids messages were pushed."""
        with self._lock:
            asked = ((kind_of(message), message.metadata.dst_node_id) for message in batch)
            self._pushed.update(zip(ids, asked, strict=False))

    def pulled(self, ids: Iterable[str], replies: Iterable[Message]) -> None:
        """Note what came when the app asked for the replies to pushed messages."""
        with self._lock:
            for reply in replies:
                self.received(reply)
            if self._round is not None:
                for id_ in ids:
                    if id_ in self._pushed and self._pushed[id_][0] in COUNTED:
                        self._round.failed.setdefault(self._pushed[id_], None)

    def received(self, reply: Message) -> None:
        """Note a reply; an error is a client that has not answered."""
        with self._lock:
            client, kind, now = reply.metadata.src_node_id, kind_of(reply), self._round
            asked = self._pushed.pop(reply.metadata.reply_to_message_id, None)
            if reply.has_content():
                self.answers += 1
            elif reply.error.code != NOTHING_TO_EVALUATE:
                reason = printable(reply.error.reason)
                self.errors.setdefault(reason, Counter())[client] += 1
            if kind not in COUNTED:
                return
            if now is None:
                self._failure_details(0, reply)
                return
            if asked is not None and now.failed.get(asked, {}) is None:
                del now.failed[asked]
            if reply.has_content():
                now.answered[kind].add(client)
                self._add(now, kind, reply)
            elif detail := self._failure_details(now.number, reply):
                now.failed[kind, client] = detail

    def _failure_details(self, number: int, reply: Message) -> Mapping[str, Any] | None:
        """Report an error reply, if it is a failure."""
        if reply.has_content() or reply.error.code == NOTHING_TO_EVALUATE:
            return None
        client, reason = reply.metadata.src_node_id, printable(reply.error.reason)
        detail = failure_detail(number, client, reason, during=kind_of(reply), error=reply.error)
        self._on_failure(detail)
        return detail

    def watched(self, batch: Sequence[Message], replies: Iterable[Message]) -> Iterator[Message]:
        """Pass on the replies to a batch, noting each as it comes, and who did not answer."""
        now = self._round
        missing = {(kind_of(m), m.metadata.dst_node_id) for m in batch if kind_of(m) in COUNTED}
        if now is not None:
            now.open_batches += 1
        for reply in replies:
            missing -= {(kind_of(reply), client) for client in clients_of(reply)}
            self.received(reply)
            yield reply
        if now is not None:
            now.open_batches -= 1
            with self._lock:
                now.failed.update(dict.fromkeys(missing))

    def aggregated(self, part: str, said: int, metrics: Mapping[str, Any]) -> None:
        """Note what the app made of a round's metrics itself, or of a central evaluation.

        `part` is "server", or a kind of messages; `said` is the app's number for the round.
        """
        with self._lock:
            now = self._round
            if now is None or now.said not in (said, None):
                return
            values = now.server if part == "server" else now.aggregated.setdefault(part, {})
            values.update(scalars_of(metrics))
            if words := {key: word for key, word in metrics.items() if key not in values}:
                self._on_answer(
                    {"round": now.number, "client": None, "type": part, "records": {part: words}}
                )

    def complete(self, *, unless_open: bool = False) -> None:
        """Report the round under way, if there is one, as ended.

        With `unless_open`, one that still waits for replies is dropped instead.
        """
        with self._lock:
            done, self._round = self._round, None
            self._pushed = {}
            if done is not None and not (unless_open and done.open_batches):
                for (kind, client), details in sorted(done.failed.items()):
                    if details is None:
                        reason = "no answer before the app went on"
                        self._on_failure(failure_detail(done.number, client, reason, during=kind))
                self._on_round(done.row(now_s=self._clock(), traffic=self._traffic()))

    def _is_new(self, batch: Sequence[Message], said: int | None) -> bool:
        now, kind = self._round, kind_of(batch[0])
        if now is None:
            return said is None or said > 0  # 0 is before the first round
        if said is None:
            if now.said is None:
                return any(_asked(message) in now.asked for message in batch)
            return kind == MessageType.TRAIN
        if now.said is None:
            return MessageType.TRAIN in now.kinds
        return said != now.said if kind == MessageType.TRAIN else said > now.said

    def _begin(self, said: int | None) -> None:
        self._last_number = max(self._last_number + 1, said or 0)
        self._round = _Round(
            number=self._last_number,
            said=said,
            began_s=self._clock(),
            traffic=self._traffic(),
        )

    def _add(self, now: _Round, kind: str, reply: Message) -> None:
        legacy = legacy_metrics(reply.content)
        for metrics in [legacy] if legacy is not None else _metrics_in(reply):
            weight = metrics.pop(self.weight_key, None)
            now.means[kind].add(
                metrics, weight=weight if weight and 0 < weight <= WEIGHT_MAX else 1.0
            )
        if said := words_in(reply, everything=kind == MessageType.QUERY):
            client = reply.metadata.src_node_id
            type_ = reply.metadata.message_type
            self._on_answer({"round": now.number, "client": client, "type": type_, "records": said})


def kind_of(message: Message) -> str:
    """Return the first part of a message type such as "train.adapter"."""
    return kind_in(message.metadata.message_type)


def kind_in(message_type: str) -> str:
    """Return the first part of a message type."""
    return message_type.partition(".")[0]


def _asked(message: Message) -> tuple[str, int]:
    return message.metadata.message_type, message.metadata.dst_node_id


def _metrics_in(reply: Message) -> Iterator[Metrics]:
    for record in reply.content.metric_records.values():
        yield scalars_of(record)


def _number_in(message: Message) -> int | None:
    for config in message.content.config_records.values():
        number = config.get("server-round")
        if isinstance(number, int):
            return number
    group = message.metadata.group_id
    return int(group) if group.isdecimal() and len(group) <= GROUP_DIGITS_MAX else None
