"""Streams and replies that no agent would make: nobody counts twice, nobody else is harmed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from meadow.transport import fleet_pb2 as pb
from meadow.transport.protocol import PROTOCOL_VERSION

from .arena import Arena
from .live_server import CALL_S, LiveServer, refused
from .raw_client import RawClient, Stream, arrays_of, blob_of, metrics_of, upload_messages
from .test_bad_updates import ALONE

COUNTED = [1, 1, 1, 0, 0, 0, 0, 0]
ONE = {"num-examples": 1}
Guest = Callable[[str], RawClient]


@pytest.fixture
def client(server: LiveServer, tmp_path: Path) -> Iterator[RawClient]:
    """A client of the server that nothing runs on."""
    made = RawClient(server, "streamer", tmp_path)
    yield made
    made.close()
    server.serves(made.pair)


def refuse(client: RawClient, id_: str) -> None:
    """Answer an instruction with a refusal."""
    assert client.stream is not None
    client.stream.send(pb.AgentMessage(reply=pb.Reply(instruction_id=id_, refused="no")))


def neighbour(instruction: pb.Instruction, arena: Arena) -> str:
    """Guess the id of an honest client's instruction: ids are counted up."""
    stem, _, own = instruction.id.rpartition("-")
    return f"{stem}-{next(n for n in range(3) if str(n) != own)}"


def test_reply_twice(arena: Arena, mallory: RawClient) -> None:
    """The same reply sent three times, once on another stream, counts once."""

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        params = arena.one_hot(2)
        blob = client.upload(instruction.id, client.tensors(**params))
        said = (instruction.id, arrays_of(blob, **params), metrics_of(ONE))
        client.reply(*said)
        client.reply(*said)
        client.connect()
        client.reply(*said)

    assert arena.play((mallory, act)).counted == COUNTED


def test_reply_in_a_later_round(arena: Arena, mallory: RawClient) -> None:
    """A reply that is captured in one round and sent in the next is not taken."""
    said: list[pb.Record | str] = []

    def first(client: RawClient, instruction: pb.Instruction) -> None:
        params = arena.one_hot(2)
        blob = client.upload(instruction.id, client.tensors(**params))
        said.extend((instruction.id, arrays_of(blob, **params), metrics_of(ONE)))
        client.reply(*said)

    def second(client: RawClient, instruction: pb.Instruction) -> None:
        client.reply(*said)
        client.reply(instruction.id, *said[1:])  # the blob belongs to the other instruction

    assert arena.play((mallory, first)).counted == COUNTED
    played = arena.play((mallory, second))
    assert played.counted == ALONE
    assert "was not uploaded" in played.told("client_failed")["reason"]


def test_reply_for_another(arena: Arena, mallory: RawClient) -> None:
    """A reply to another client's instruction changes nothing for that client."""

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        params = arena.one_hot(2)
        other = neighbour(instruction, arena)
        with refused(grpc.StatusCode.NOT_FOUND, match="is not open for mallory"):
            client.upload(other, client.tensors(**params))
        blob = client.upload(instruction.id, client.tensors(**params))
        client.reply(other, arrays_of(blob, **params), metrics_of(ONE))
        client.reply(other, error=pb.AppError(code=1, reason="fail, neighbour"))
        refuse(client, instruction.id)

    played = arena.play((mallory, act))
    assert played.counted == ALONE
    told = played.told("client_failed")
    assert (told["client"], told["site"]) == (mallory.node_id, mallory.name)


def test_hang_up_after_reply(arena: Arena, mallory: RawClient) -> None:
    """A client that hangs up while its reply is written down counts once, and blocks nobody."""

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        params = arena.one_hot(2)
        blob = client.upload(instruction.id, client.tensors(**params))
        records = [arrays_of(blob, **params), metrics_of(ONE)]
        reply = pb.Reply(instruction_id=instruction.id, envelope=pb.Envelope(records=records))
        assert client.stream is not None
        for _ in range(5):
            client.stream.send(pb.AgentMessage(reply=reply))
            client.connect()
        client.reply(instruction.id, *records)

    for _ in range(5):
        assert arena.play((mallory, act)).counted == COUNTED


def test_two_streams(arena: Arena, guest: Guest) -> None:
    """A second stream of a client takes the first one's place, and is given what is owed."""
    twin = guest("twin")
    first = twin.connect()

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        again = client.connect()
        assert again.next("instruction").id == instruction.id
        error = first.ended()
        assert error.code() == grpc.StatusCode.UNAVAILABLE and "again" in error.details()
        client.update(instruction.id, **arena.one_hot(3))

    assert arena.play((twin, act)).counted == [1, 1, 0, 1, 0, 0, 0, 0]


def test_silent(arena: Arena, guest: Guest) -> None:
    """A client that never answers is given up when its lease is over; the round counts."""
    silent = guest("silent")
    silent.connect()
    played = arena.play((silent, lambda client, instruction: None))
    assert played.counted == ALONE
    assert silent.stream is not None
    assert "ended without" in silent.stream.next("cancel").reason


def test_another_protocol(server: LiveServer, client: RawClient) -> None:
    """An older and a newer agent are told which side to upgrade, and the operator is, once."""
    for number, side in (
        (PROTOCOL_VERSION - 1, "the agent's"),
        (PROTOCOL_VERSION + 1, "the server's"),
    ):
        hello = pb.Hello(protocol=number, client=client.name, version="0.0.7")
        for _ in range(2):
            error = Stream(client.stub, pb.AgentMessage(hello=hello)).ended()
            assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert f"speaks protocol {number}, not {PROTOCOL_VERSION}" in error.details()
            assert f"the client '0.0.7'; upgrade {side} Meadow" in error.details()
    said = [
        each for each in server.events(kind="access_denied") if each.get("client") == client.name
    ]
    assert len(said) == 1 and f"speaks protocol {PROTOCOL_VERSION - 1}" in said[0]["reason"]
    client.connect()


def test_first_message(client: RawClient) -> None:
    """A stream that does not begin with a hello, or in another protocol, ends with a reason."""
    progress = pb.AgentMessage(progress=pb.Progress(instruction_id="1"))
    foreign = pb.AgentMessage(hello=pb.Hello(protocol=99, client=client.name))
    for first, code, text in (
        (progress, grpc.StatusCode.INVALID_ARGUMENT, "not a hello"),
        (pb.AgentMessage(), grpc.StatusCode.INVALID_ARGUMENT, "not a hello"),
        (foreign, grpc.StatusCode.FAILED_PRECONDITION, "speaks protocol 99"),
    ):
        error = Stream(client.stub, first).ended()
        assert error.code() == code and text in error.details()
    with refused(grpc.StatusCode.DEADLINE_EXCEEDED, match="no hello"):
        next(client.stub.Connect(iter(()), timeout=CALL_S))


def test_no_protobuf(server: LiveServer, client: RawClient) -> None:
    """Bytes that are no message end their own stream only, whenever they come."""
    hello = pb.AgentMessage(
        hello=pb.Hello(protocol=PROTOCOL_VERSION, client=client.name)
    ).SerializeToString()
    connect = client.channel.stream_stream("/meadow.v1.Fleet/Connect")
    for said in ([b"\xff" * 100], [hello, b"\xff" * 100]):
        with contextlib.suppress(grpc.RpcError):
            for _ in connect(iter(said), timeout=CALL_S):
                pass
        server.serves(client.pair)
    upload = client.channel.stream_unary("/meadow.v1.Fleet/Upload")
    for said in ([b"\xff" * 100], [b""], []):
        with refused(grpc.StatusCode.INVALID_ARGUMENT):
            upload(iter(said), timeout=CALL_S)
    server.serves(client.pair)


def test_never_reads(server: LiveServer, client: RawClient) -> None:
    """A client that says much and reads nothing costs the server no memory."""
    stream = client.connect(reads=False)
    before = server.resident_bytes()
    for number in range(30):
        id_ = str(number) + "x" * (8 << 20)
        stream.send(pb.AgentMessage(reply=pb.Reply(instruction_id=id_, refused="no")))
    server.serves(client.pair)  # the new stream has taken the old one's place
    assert server.resident_bytes() - before < 100 << 20


def test_foreign_blobs(arena: Arena, mallory: RawClient) -> None:
    """Only what an own, open instruction names can be fetched; no id leads anywhere else."""

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        own = next(r.arrays.blob for r in instruction.envelope.records if r.HasField("arrays"))
        assert client.download(own)
        names = [
            "",
            "..",
            "../../ca/key",
            "../up/x/y",
            "/etc/passwd",
            "a" * 100_000,
            own.id.upper(),
        ]
        for name in names:
            with refused(grpc.StatusCode.NOT_FOUND):
                client.download(pb.Blob(id=name))
        request = pb.DownloadRequest(blob_id=own.id, offset=1 << 63)
        with refused(grpc.StatusCode.OUT_OF_RANGE):
            list(client.stub.Download(request, timeout=CALL_S))
        refuse(client, instruction.id)

    assert arena.play((mallory, act)).counted == ALONE


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/b", "/tmp/x", "A", "x" * 65, "a.b", "é", "a\n"]
)
def test_blob_ids(arena: Arena, mallory: RawClient, name: str) -> None:
    """A blob whose id is no plain word is refused, in an upload and in a reply."""

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        blob = blob_of(b"x", id=name)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, match="is no blob id"):
            client.stub.Upload(upload_messages(instruction.id, blob, b"x"), timeout=CALL_S)
        client.reply(instruction.id, arrays_of(blob), metrics_of(ONE))

    played = arena.play((mallory, act))
    assert played.counted == ALONE
    assert "is no blob id" in played.told("client_failed")["reason"]
