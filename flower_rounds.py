"""Rows of metrics.jsonl for an app that keeps none itself, made of the messages that go by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from flwr.app import Message, MessageType, MetricRecord

from .strategies.metrics import MetricMeans, Metrics, scalars_of
from .strategies.recorder import Row

__all__ = ["WEIGHT_KEY", "RoundWatch", "Traffic"]

WEIGHT_KEY = "num-examples"
"""Flower's name for the number by which a reply's metrics are weighted."""

WEIGHT_MAX = 1e9

Traffic = tuple[int, int]
"""Bytes of tensors sent and received so far."""


@dataclass(slots=True, kw_only=True)
class _Round:
    number: int
    said: int
    """What the app calls it: a second strategy in the same app begins at 1 again."""
    began_s: float
    traffic: Traffic
    asked: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    train: MetricMeans = field(default_factory=MetricMeans)
    evaluate: MetricMeans = field(default_factory=MetricMeans)
    server: Metrics = field(default_factory=dict)
    open_batches: int = 0

    def row(self, *, now_s: float, traffic: Traffic) -> Row:
        return {
            "round": self.number,
            "duration_s": now_s - self.began_s,
            "clients": len(self.answered),
            "failures": len(self.asked - self.answered),
            "train": self.train.means(),
            "evaluate": self.evaluate.means(),
            "server": dict(self.server),
            "bytes_sent": traffic[0] - self.traffic[0],
            "bytes_received": traffic[1] - self.traffic[1],
            "privacy": None,
        }


class RoundWatch:
    """Watches an app's messages and tells of each round when it is over.

    A round begins with a train message of another "server-round" than before, or an evaluate
    message of a later one; where train messages name none, with each batch of them. It is over
    when the next one begins, or at `complete`. Rounds are numbered upwards, whatever the app does.

    The metrics of a row are the means of what clients report, weighted by `weight_key`; a reply
    without a usable weight counts as one example.
    """

    def __init__(
        self,
        on_round: Callable[[Row], None],
        *,
        clock: Callable[[], float],
        traffic: Callable[[], Traffic],
    ) -> None:
        self._on_round = on_round
        self._clock = clock
        self._traffic = traffic
        self._round: _Round | None = None
        self._last_number = 0
        self.weight_key = WEIGHT_KEY

    def sending(self, batch: Iterable[Message]) -> None:
        """Note what is sent; if it begins a round, the one before is over."""
        counted = [m for m in batch if kind_of(m) in (MessageType.TRAIN, MessageType.EVALUATE)]
        if not counted:
            return
        said = _number_in(counted[0])
        if self._is_new(kind_of(counted[0]), said):
            self.complete()
            self._begin(said)
        if self._round is not None:
            trained = (m for m in counted if kind_of(m) == MessageType.TRAIN)
            self._round.asked.update(m.metadata.dst_node_id for m in trained)

    def received(self, reply: Message) -> None:
        """Note a reply; an error is a client that has not answered."""
        kind, now = kind_of(reply), self._round
        if now is None or not reply.has_content():
            return
        if kind == MessageType.TRAIN:
            now.answered.add(reply.metadata.src_node_id)
            self._add(now.train, reply)
        elif kind == MessageType.EVALUATE:
            self._add(now.evaluate, reply)

    def watched(self, replies: Iterable[Message]) -> Iterator[Message]:
        """Pass on the replies to a batch, noting each as it comes."""
        now = self._round
        if now is not None:
            now.open_batches += 1
        for reply in replies:
            self.received(reply)
            yield reply
        if now is not None:
            now.open_batches -= 1

    def evaluated(self, said: int, metrics: MetricRecord | None) -> None:
        """Note what central evaluation gave for a round, by the app's number for it."""
        if self._round is not None and self._round.said == said:
            self._round.server = scalars_of(metrics)

    def complete(self, *, unless_open: bool = False) -> None:
        """Tell of the round under way, if there is one; it is over.

        With `unless_open`, one that still waits for replies is dropped instead.
        """
        done, self._round = self._round, None
        if done is not None and not (unless_open and done.open_batches):
            self._on_round(done.row(now_s=self._clock(), traffic=self._traffic()))

    def _is_new(self, kind: str, said: int | None) -> bool:
        now = self._round
        if kind == MessageType.TRAIN:
            return now is None or said is None or said != now.said
        return said is not None and said > (now.said if now else 0)

    def _begin(self, said: int | None) -> None:
        self._last_number = max(self._last_number + 1, said or 0)
        self._round = _Round(
            number=self._last_number,
            said=self._last_number if said is None else said,
            began_s=self._clock(),
            traffic=self._traffic(),
        )

    def _add(self, means: MetricMeans, reply: Message) -> None:
        for record in reply.content.metric_records.values():
            metrics = scalars_of(record)
            weight = metrics.pop(self.weight_key, None)
            means.add(metrics, weight=weight if weight and 0 < weight <= WEIGHT_MAX else 1.0)


def kind_of(message: Message) -> str:
    """Return the first part of a message type such as "train.adapter"."""
    return message.metadata.message_type.partition(".")[0]


def _number_in(message: Message) -> int | None:
    for config in message.content.config_records.values():
        number = config.get("server-round")
        if isinstance(number, int):
            return number
    return None
