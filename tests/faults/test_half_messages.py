"""Messages that are begun and not ended take up little, and others are served meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from meadow.server.daemon.blob_service import WINDOW_BYTES_MAX
from meadow.server.daemon.daemon import MESSAGE_BYTES_MAX
from meadow.transport import fleet_pb2 as pb
from meadow.transport.fleet_pb2_grpc import EnrollmentStub
from meadow.transport.keys import KeyPair, create_request

from .arena import Arena
from .live_server import CALL_S, LiveServer, wait_until
from .raw_client import RawClient, arrays_of, blob_of, metrics_of, upload_messages
from .raw_http2 import RawHttp2
from .test_streams import COUNTED, ONE

CONNECTIONS = 6
STREAMS = 64
TRIES = 3
MEMORY_BYTES_MAX = 64 << 20
"""Before there was a bound, it was 1 GB a connection."""
HALF = MESSAGE_BYTES_MAX - 2048
PATHS = (
    "/meadow.v1.Fleet/Connect",
    "/meadow.v1.Fleet/Upload",
    "/meadow.v1.Fleet/Download",
    "/meadow.v1.Fleet/Renew",
    "/meadow.v1.Admin/Status",
)


def dialled(address: str, pair: KeyPair | None) -> RawHttp2:
    """Connect as gRPC's clients do, which dial again: right after a flood the server may hang up on a
    connection that has just come."""
    for _ in range(TRIES - 1):
        with suppress(OSError):
            return RawHttp2(address, pair)
    return RawHttp2(address, pair)


def hold(address: str, pair, paths: Sequence[str], declared: list[int]) -> list[RawHttp2]:
    """Begin messages of so many bytes on every stream of a connection each, and end none; the server
    may end them. The streams call the paths in turn."""

    def begin(hostile: RawHttp2, size: int) -> None:
        with suppress(OSError):
            for stream in [hostile.open(paths[i % len(paths)]) for i in range(STREAMS)]:
                hostile.begin(stream, size, size - 10, 0.2)

    held = [dialled(address, pair) for _ in declared]
    threads = [
        threading.Thread(target=begin, args=each, daemon=True)
        for each in zip(held, declared, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return held


def test_with_a_certificate(server: LiveServer, tmp_path: Path) -> None:
    """An enrolled client's half messages are bounded, whatever they call, and however long."""
    pair = server.enroll("half", tmp_path)
    before = server.resident_bytes()
    held = hold(server.fleet, pair, PATHS, [HALF, 15 << 20] * CONNECTIONS)
    assert server.resident_bytes() - before < MEMORY_BYTES_MAX
    server.serves(pair)
    for hostile in held:
        hostile.close()


def test_what_is_granted_ahead(server: LiveServer, tmp_path: Path) -> None:
    """An enrolled client may fill a long line before a byte of a chunk is read; a stranger may not."""
    pair = server.enroll("ahead", tmp_path)
    for address, own, granted in (
        (server.fleet, pair, WINDOW_BYTES_MAX),
        (server.enroll_address, None, 65_535),
    ):
        peer = dialled(address, own)
        assert peer.initial_window(CALL_S) == granted
        peer.close()


def test_without_a_certificate(server: LiveServer, tmp_path: Path) -> None:
    """Strangers who hold every stream of many connections keep nobody from enrolling."""
    paths, before = ["/meadow.v1.Enrollment/Enroll"], server.resident_bytes()
    held = hold(server.enroll_address, None, paths, [60 << 10] * 3 * CONNECTIONS)
    request = pb.EnrollRequest(
        token=server.token("patient"), csr_pem=create_request("new", tmp_path / "key.pem")
    )
    with server.enrollment() as channel:
        assert EnrollmentStub(channel).Enroll(request, timeout=CALL_S).client == "patient"
    assert server.resident_bytes() - before < MEMORY_BYTES_MAX
    for hostile in held:
        hostile.close()


def test_a_reply_in_a_file(arena: Arena, mallory: RawClient) -> None:
    """A reply that is too large for a message is uploaded, and counts."""

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        params = arena.one_hot(2)
        blob = client.upload(instruction.id, client.tensors(**params))
        envelope = pb.Envelope(records=[arrays_of(blob, **params), metrics_of(ONE)])
        data = envelope.SerializeToString()
        file = client.upload(instruction.id, data)
        assert client.stream is not None
        reply = pb.Reply(instruction_id=instruction.id, file=file)
        client.stream.send(pb.AgentMessage(reply=reply))
        assert client.stream.next("ack").instruction_id == instruction.id

    assert arena.play((mallory, act)).counted == COUNTED


@pytest.mark.parametrize("data", [None, b"\xff" * 100])
def test_a_reply_in_no_file(arena: Arena, mallory: RawClient, data: bytes | None) -> None:
    """A reply whose file was not uploaded, or holds no reply, is refused by name."""

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        file = blob_of(b"x") if data is None else client.upload(instruction.id, data)
        assert client.stream is not None
        reply = pb.Reply(instruction_id=instruction.id, file=file)
        client.stream.send(pb.AgentMessage(reply=reply))
        assert client.stream.next("ack").instruction_id == instruction.id

    told = arena.play((mallory, act)).told("client_failed")
    assert ("was not uploaded" if data is None else "is malformed") in told["reason"]


def test_an_upload_that_another_replaces(arena: Arena, mallory: RawClient) -> None:
    """Its call ends with a reason: one that is never answered would keep what has come of it."""

    def act(client: RawClient, instruction: pb.Instruction) -> None:
        params = arena.one_hot(2)
        data = client.tensors(**params)
        blob, over = blob_of(data), threading.Event()

        def slowly():
            yield next(upload_messages(instruction.id, blob, data))
            over.wait(CALL_S)

        earlier = client.stub.Upload.future(slowly(), timeout=CALL_S)
        spool = arena.server.folder / "spool"
        wait_until(lambda: list(spool.rglob(f"{blob.id}.*")))
        client.upload(instruction.id, data, blob=blob)
        assert earlier.code() == grpc.StatusCode.UNAVAILABLE, earlier.code()
        assert "taken its place" in (earlier.details() or "")
        over.set()
        client.reply(instruction.id, arrays_of(blob, **params), metrics_of(ONE))

    assert arena.play((mallory, act)).counted == COUNTED
