"""What a relay's reply says of the clients behind it: one reply with their sums, and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict

from ...errors import MeadowError, ProtocolError
from ...flower.messages import FlatTensor, rebuild_message, tensors_of
from ...privacy.dp.mechanisms.clipping import Clipping
from ...strategies.algorithms.combined import CLIENTS_KEY, SummedRecord
from ...transport.relaying import RELAY_RECORD, REST_RECORD

__all__ = ["replies_behind", "reply_of_one"]

UNAVAILABLE = 4
"""Flower's code for a reply that is not available. Source: flwr 1.41, ErrorCode."""
REASON_CHARS_MAX = 500


def replies_behind(
    reply: Message, asked: Sequence[int], *, relay: str, clipping: Clipping | None = None
) -> Iterator[Message]:
    """Yield the errors of clients behind a relay, and then one reply that stands for all others.

    `asked` are the clients that the relay was to ask, and `clipping` is how it was to clip their
    updates. A reply that is not what a relay's may be is the failure of all of them.
    """
    try:
        combined, failed = _read(reply, asked, clipping)
    except MeadowError as error:
        combined, failed = None, dict.fromkeys(asked, (UNAVAILABLE, str(error)))
    for client, (code, reason) in sorted(failed.items()):
        text = f"behind {relay}: {reason}"[:REASON_CHARS_MAX]
        yield rebuild_message(_from(reply, client), Error(code, text))
    if combined is not None:
        yield combined


def reply_of_one(reply: Message) -> Message:
    """Return a client's own reply, or an error if it claims to stand for other clients."""
    if reply.has_content() and any(
        CLIENTS_KEY in record for record in reply.content.metric_records.values()
    ):
        return rebuild_message(
            reply.metadata, Error(UNAVAILABLE, "the reply claims to stand for other clients")
        )
    return reply


def _read(
    reply: Message, asked: Sequence[int], clipping: Clipping | None
) -> tuple[Message | None, Mapping[int, tuple[int, str]]]:
    """Return the reply that stands for clients, None if it stands for none, and who has failed, by
    which code and why.

    Raises:
        ProtocolError: the reply is not a relay's.
    """
    if reply.has_error():
        return None, dict.fromkeys(asked, (reply.error.code, reply.error.reason or "failed"))
    content = RecordDict(dict(reply.content))
    known = content.pop(RELAY_RECORD, None)
    rest = content.pop(REST_RECORD, None)
    if not isinstance(known, ConfigRecord):
        raise ProtocolError("the relay's reply does not say whom it stands for")
    clients, gone = _numbers(known, "clients"), _numbers(known, "failed")
    codes, reasons = _numbers(known, "codes"), known.get("reasons", [])
    each = [*clients, *gone]
    if (
        len(set(each)) != len(each)
        or not set(each) <= set(asked)
        or not isinstance(reasons, list)
        or not len(gone) == len(codes) == len(reasons)
    ):
        raise ProtocolError("the relay's reply stands for clients that it was not to ask")
    failed = dict.fromkeys(set(asked) - set(clients), (UNAVAILABLE, "no answer in time"))
    failed |= {
        client: (code, str(reason))
        for client, code, reason in zip(gone, codes, reasons, strict=True)
    }
    if not clients:
        return None, failed
    if known.get("clip-norm") != (None if clipping is None else clipping.clip_norm):
        raise ProtocolError(
            "the relay has not clipped its clients' updates as this round asks: install the server's "
            "version of Meadow on it"
        )
    for name, record in content.items():
        if isinstance(record, MetricRecord):
            content[name] = _metrics(record, clients, known, rest)
    return rebuild_message(_from(reply, min(clients)), content), failed


def _metrics(
    record: MetricRecord, clients: list[int], known: ConfigRecord, rest: object
) -> MetricRecord:
    """Return the metrics of a reply that stands for clients; with sums, what these lack."""
    weights = known.get("weights")
    if rest is None:
        return MetricRecord({**record, CLIENTS_KEY: sorted(clients)})
    if not isinstance(rest, ArrayRecord) or not isinstance(weights, list):
        raise ProtocolError("the relay's reply has no weights of its sums")
    found = SummedRecord({**record, CLIENTS_KEY: sorted(clients)})
    rests: Mapping[str, FlatTensor] = tensors_of(rest)
    found.weights, found.rests = [float(weight) for weight in weights], rests
    return found


def _numbers(known: ConfigRecord, key: str) -> list[int]:
    value = known.get(key, [])
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise ProtocolError(f"the relay's reply has no list of numbers {key!r}")
    return [each for each in value if isinstance(each, int)]


def _from(reply: Message, client: int) -> Metadata:
    """Return a reply's metadata as if this client had sent it."""
    metadata = reply.metadata
    return Metadata(
        run_id=metadata.run_id,
        message_id=f"{metadata.message_id}-{client}",
        src_node_id=client,
        dst_node_id=metadata.dst_node_id,
        reply_to_message_id=metadata.reply_to_message_id,
        group_id=metadata.group_id,
        created_at=metadata.created_at,
        ttl=metadata.ttl,
        message_type=metadata.message_type,
    )
