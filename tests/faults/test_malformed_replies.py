"""Replies that are not what the protocol allows: the sender fails, and the run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from meadow.transport import fleet_pb2 as pb
from meadow.transport.packed import PACKED_BYTES_MAX

from .arena import Arena, Played
from .raw_client import RawClient, arrays_of, blob_of, metrics_of
from .test_bad_updates import ALONE

ONE = {"num-examples": 1}
Say = Callable[[RawClient, str, dict[str, np.ndarray]], object]


def records(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> list[pb.Record]:
    """Upload an update and return the records of a good reply."""
    blob = client.upload(id_, client.tensors(**params))
    return [arrays_of(blob, **params), metrics_of(ONE)]


def raw_blob(data: bytes) -> Say:
    """Reply with any bytes where tensors should be."""

    def say(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
        client.reply(id_, arrays_of(client.upload(id_, data), **params), metrics_of(ONE))

    return say


def raw_packed(data: bytes) -> Say:
    """Reply with any bytes in the message where tensors should be."""

    def say(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
        record = arrays_of(blob_of(b""), **params)
        record.arrays.packed = data
        client.reply(id_, record, metrics_of(ONE))

    return say


def header(text: str | bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Return a safetensors file with any header, and any length of it."""
    body = text.encode() if isinstance(text, str) else text
    return (len(body) if length is None else length).to_bytes(8, "little") + body + data


def claims(**entry: object) -> bytes:
    """Return a file whose header claims something about the one tensor in it."""
    good = {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}
    return header(json.dumps({"slots": {**good, **entry}}), bytes(32))


def two_of_a_name(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Name two records the same."""
    client.reply(id_, *records(client, id_, params), metrics_of(ONE))


def of_no_kind(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Send a record that is nothing."""
    client.reply(id_, *records(client, id_, params), pb.Record(name="nothing"))


def two_updates(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Send two records of arrays."""
    first, metrics = records(client, id_, params)
    second = pb.Record(name="again", arrays=first.arrays)
    client.reply(id_, first, second, metrics)


def error_and_update(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Fail and succeed at once."""
    error = pb.AppError(code=1, reason="no")
    client.reply(id_, *records(client, id_, params), error=error)


def long_error(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Complain for as long as a message may be, in several lines, with commands to the terminal."""
    client.reply(id_, error=pb.AppError(code=1 << 62, reason="\x1b[2J\n" * 40_000))


def long_refusal(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Refuse for as long as a message may be."""
    assert client.stream is not None
    reply = pb.Reply(instruction_id=id_, refused="\x1b[2J\n" * 40_000)
    client.stream.send(pb.AgentMessage(reply=reply))


def nothing(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Answer without an answer."""
    assert client.stream is not None
    client.stream.send(pb.AgentMessage(reply=pb.Reply(instruction_id=id_)))


def empty(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Send an envelope without anything in it."""
    client.reply(id_)


def not_uploaded(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Name a blob that was never sent."""
    client.reply(id_, arrays_of(blob_of(b"x" * 99), **params), metrics_of(ONE))


def many_records(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Send more records than anybody needs."""
    more = [pb.Record(name=str(number), metrics=pb.Entries()) for number in range(1000)]
    client.reply(id_, *records(client, id_, params), *more)


def many_metrics(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Send more metrics than anybody needs."""
    arrays, _ = records(client, id_, params)
    client.reply(id_, arrays, metrics_of({**ONE, **{f"m{n}": 1.0 for n in range(1000)}}))


def metric_twice(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Say how many examples it were, twice."""
    arrays, metrics = records(client, id_, params)
    metrics.metrics.entries.append(metrics.metrics.entries[0])
    client.reply(id_, arrays, metrics)


def metric_of_bytes(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Report bytes as a metric."""
    arrays, _ = records(client, id_, params)
    client.reply(id_, arrays, metrics_of({**ONE, "loss": b"\x80\x04cos\nsystem\n."}))


def examples_true(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Say that there were examples, but not how many."""
    arrays, _ = records(client, id_, params)
    client.reply(id_, arrays, metrics_of({"num-examples": True}))


def metric_of_no_kind(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Report a value that is nothing."""
    arrays, metrics = records(client, id_, params)
    metrics.metrics.entries.append(pb.Entry(key="loss"))
    client.reply(id_, arrays, metrics)


def hostile_name(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Name a metric so that whoever lists it sees something else."""
    arrays, _ = records(client, id_, params)
    client.reply(id_, arrays, metrics_of({**ONE, "\x1b[2J\r\n[red]loss": 1.0}))


def long_name(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Name a tensor at length."""
    blob = client.upload(id_, header("{}"))
    infos = [pb.ArrayInfo(name="n" * 100_000, dtype="float32", shape=[8], stype="numpy.ndarray")]
    client.reply(id_, arrays_of(blob, infos), metrics_of(ONE))


def other_names(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Say other names than the file holds."""
    blob = client.upload(id_, client.tensors(**params))
    client.reply(id_, arrays_of(blob, a=params["slots"], b=params["counts"]), metrics_of(ONE))


def other_size(client: RawClient, id_: str, params: dict[str, np.ndarray]) -> None:
    """Say another size than was uploaded."""
    blob = client.upload(id_, client.tensors(**params))
    blob.size_bytes += 1
    client.reply(id_, arrays_of(blob, **params), metrics_of(ONE))


MALFORMED: dict[str, Say] = {
    "no safetensors": raw_blob(b"not a file of tensors at all"),
    "empty file": raw_blob(b""),
    "lying header length": raw_blob(header("{}", length=(1 << 63) - 1)),
    "header length beyond the file": raw_blob(header("{}", length=10_000)),
    "deep header": raw_blob(header("[" * 500_000)),
    "deep object": raw_blob(header('{"a":' * 40_000)),
    "not UTF-8": raw_blob(header(b'{"\xff":1}')),
    "infinite shape": raw_blob(claims(shape=[1 << 62, 1 << 62])),
    "data outside": raw_blob(claims(data_offsets=[1 << 40, (1 << 40) + 32])),
    "unknown dtype": raw_blob(claims(dtype="PY")),
    "negative": raw_blob(claims(shape=[-8])),
    "packed: no safetensors": raw_packed(b"not a file of tensors at all"),
    "packed: empty": raw_packed(b""),
    "packed: lying header length": raw_packed(header("{}", length=(1 << 63) - 1)),
    "packed: deep header": raw_packed(header("[" * 30_000)),
    "packed: infinite shape": raw_packed(claims(shape=[1 << 62, 1 << 62])),
    "packed: data outside": raw_packed(claims(data_offsets=[1 << 40, (1 << 40) + 32])),
    "packed: too much": raw_packed(bytes(PACKED_BYTES_MAX + 1)),
    "packed: too long": raw_packed(bytes(200 << 10)),
    **{
        say.__name__.replace("_", " "): say
        for say in (
            two_of_a_name, of_no_kind, two_updates, error_and_update, long_error, long_refusal,
            nothing, empty, not_uploaded, many_records, many_metrics, metric_twice,
            metric_of_bytes, metric_of_no_kind, examples_true, hostile_name, long_name, other_names, other_size,
        )
    },
}  # fmt: skip


def failed_in(played: Played, client: RawClient) -> str:
    """Make sure that a client failed in a round, and return why."""
    assert played.counted == ALONE
    told = [
        detail
        for kind, detail in played.events
        if kind in ("update_refused", "client_failed") and detail["client"] == client.node_id
    ]
    assert len(told) == 1 and told[0]["round"] == played.number, played.events
    reason = told[0]["reason"]
    assert isinstance(reason, str) and 0 < len(reason) <= 300 and reason.isprintable(), reason
    return reason


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(arena: Arena, mallory: RawClient, case: str) -> None:
    """A reply that is malformed in any way is its sender's failure, and nobody else's."""
    played = arena.play((mallory, lambda c, i: MALFORMED[case](c, i.id, arena.one_hot(2))))
    failed_in(played, mallory)
