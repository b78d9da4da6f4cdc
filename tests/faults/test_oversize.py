"""Case 10: too large, or not as large as it says: refused before anything is allocated."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from meadow.config.server_config import REPLY_BYTES_MIN
from meadow.errors import LimitError
from meadow.server.daemon.daemon import MESSAGE_BYTES_MAX
from meadow.transport import fleet_pb2 as pb
from meadow.transport.codec import decode
from meadow.transport.fleet_pb2_grpc import EnrollmentStub

from .arena import Arena
from .live_server import BLOB_BYTES_MAX, CALL_S, LiveServer, refused, wait_until
from .raw_client import CHUNK_BYTES, RawClient, arrays_of, blob_of, upload_messages
from .test_bad_updates import ALONE
from .test_streams import refuse

MEMORY_BYTES_MAX = 48 << 20
"""What the daemon may take for any of these; each of them speaks of much more."""
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def piece(data: bytes, *, offset: int = 0) -> pb.UploadMessage:
    """Return a chunk."""
    return pb.UploadMessage(chunk=pb.Chunk(offset=offset, data=data))


def attack(arena: Arena, mallory: RawClient, act: Callable[[RawClient, str], object]) -> None:
    """Do something in a round; it costs little memory, and the honest count as ever."""
    before = arena.server.resident_bytes()

    def whole(client: RawClient, instruction: pb.Instruction) -> None:
        act(client, instruction.id)
        refuse(client, instruction.id)

    played = arena.play((mallory, whole))
    assert played.counted == ALONE
    assert played.told("client_failed")["client"] == mallory.node_id
    assert arena.server.resident_bytes() - before < MEMORY_BYTES_MAX


def test_message(arena: Arena, mallory: RawClient) -> None:
    """A message beyond the limit ends its stream; the client may come back."""

    def act(client: RawClient, id_: str) -> None:
        assert client.stream is not None
        client.stream.send(pb.AgentMessage(reply=pb.Reply(refused="x" * (200 << 20))))
        assert client.stream.ended().code() in (EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
        client.connect()

    attack(arena, mallory, act)


@pytest.mark.parametrize("size", [BLOB_BYTES_MAX + 1, 1 << 62, (1 << 64) - 1])
def test_declared_size(arena: Arena, mallory: RawClient, size: int) -> None:
    """A blob that is declared too large is refused when it is declared."""

    def act(client: RawClient, id_: str) -> None:
        blob = blob_of(b"", size_bytes=size)
        with refused(EXHAUSTED, match=str(size)):
            client.stub.Upload(upload_messages(id_, blob, b"x"), timeout=CALL_S)

    attack(arena, mallory, act)


def test_declared_and_not_sent(arena: Arena, mallory: RawClient) -> None:
    """A large blob that is declared, and of which a byte comes, takes up a byte."""

    def act(client: RawClient, id_: str) -> None:
        blob = blob_of(b"x", size_bytes=REPLY_BYTES_MIN)
        state = client.stub.Upload(upload_messages(id_, blob, b"x"), timeout=CALL_S)
        assert (state.received_bytes, state.complete) == (1, False)
        (part,) = arena.server.folder.glob(f"spool/*/up/*/{blob.id}.part")
        assert part.stat().st_blocks * 512 < 1 << 16

    attack(arena, mallory, act)


def test_more_than_the_model_needs(arena: Arena, mallory: RawClient) -> None:
    """However large files may be: an answer to a small model is small, in one file or in eight."""

    def act(client: RawClient, id_: str) -> None:
        blob = blob_of(b"x", size_bytes=REPLY_BYTES_MIN + 1)
        with refused(EXHAUSTED, match=f"exceeds {REPLY_BYTES_MIN}"):
            client.stub.Upload(upload_messages(id_, blob, b"x"), timeout=CALL_S)
        for _ in range(7):
            blob = blob_of(b"x", size_bytes=REPLY_BYTES_MIN // 7)
            client.stub.Upload(upload_messages(id_, blob, b"x"), timeout=CALL_S)
        with refused(EXHAUSTED, match=f"exceeds {REPLY_BYTES_MIN}"):
            blob = blob_of(b"x", size_bytes=REPLY_BYTES_MIN // 7)
            client.stub.Upload(upload_messages(id_, blob, b"x"), timeout=CALL_S)

    attack(arena, mallory, act)


def hold(client: RawClient, id_: str, blob: pb.Blob, done: threading.Event) -> grpc.Future:
    """Send half of a blob, and keep the call; returns it when the half is there."""
    half = b"x" * (blob.size_bytes // 2)

    def messages() -> Iterator[pb.UploadMessage]:
        yield pb.UploadMessage(open=pb.UploadOpen(instruction_id=id_, blob=blob))
        yield piece(half)
        done.wait(CALL_S)

    return client.stub.Upload.future(messages(), timeout=CALL_S)


def parts(folder: Path, blob: pb.Blob) -> list[Path]:
    """Return what is there of a blob."""
    return [path for path in folder.glob(f"spool/*/up/*/{blob.id}.*") if path.stat().st_size]


def test_an_upload_ends_with_its_instruction(arena: Arena, mallory: RawClient) -> None:
    """Whoever has answered sends nothing more: the call ends, its part is deleted and let go, and
    so is every other file that the answer does not name."""
    blob, whole, folder = blob_of(b"", size_bytes=2000), blob_of(b"w"), arena.server.folder
    done = threading.Event()
    calls: list[grpc.Future] = []

    def act(client: RawClient, id_: str) -> None:
        client.upload(id_, b"w", blob=whole)
        calls.append(hold(client, id_, blob, done))
        wait_until(lambda: parts(folder, blob))

    try:
        attack(arena, mallory, act)
        assert calls[0].exception(CALL_S).code() == grpc.StatusCode.NOT_FOUND
        wait_until(lambda: not parts(folder, blob) and not parts(folder, whole))
        assert not arena.server.deleted_files()
    finally:
        done.set()


def test_an_upload_ends_with_its_run(tmp_path: Path) -> None:
    """A run that is stopped leaves nothing: no call, no file, no deleted file that still grows."""
    blob, done = blob_of(b"", size_bytes=2000), threading.Event()
    with (
        closing(LiveServer(tmp_path / "server")) as server,
        closing(Arena(server, tmp_path / "a")) as arena,
    ):
        client = arena.honest[0]
        assert client.stream is not None
        call = hold(client, client.stream.next("instruction").id, blob, done)
        try:
            wait_until(lambda: parts(server.folder, blob))
            server.admin.Stop(pb.RunId(id=arena.run.id), timeout=60.0)
            assert call.exception(60.0).code() == grpc.StatusCode.NOT_FOUND
            wait_until(lambda: not (server.folder / "spool" / str(arena.run.id)).exists())
            assert not server.deleted_files()
        finally:
            done.set()


CHUNKS = {
    "too much": (blob_of(b"x" * 10), [piece(b"y" * 100)], EXHAUSTED, "10 were declared"),
    "large": (
        blob_of(b"x", size_bytes=9 << 20),
        [piece(b"y" * (8 << 20))],
        EXHAUSTED,
        "larger than max",
    ),
    "empty": (blob_of(b"xx"), [piece(b"")], EXHAUSTED, "chunk of 0 bytes"),
    "gap": (blob_of(b"xx"), [piece(b"x", offset=1)], INVALID, "a chunk at 1, not 0"),
    "other bytes": (blob_of(b"xx"), [piece(b"yy")], INVALID, "checksum is not the declared one"),
}


@pytest.mark.parametrize("case", CHUNKS)
def test_chunks(arena: Arena, mallory: RawClient, case: str) -> None:
    """Chunks that are not as declared are refused, and not kept."""
    blob, chunks, code, reason = CHUNKS[case]

    def act(client: RawClient, id_: str) -> None:
        opening = pb.UploadMessage(open=pb.UploadOpen(instruction_id=id_, blob=blob))
        with refused(code, match=reason):
            client.stub.Upload(iter([opening, *chunks]), timeout=CALL_S)
        assert not list(arena.server.folder.glob(f"spool/*/up/*/{blob.id}.safetensors"))

    attack(arena, mallory, act)


def test_a_damaged_part(arena: Arena, mallory: RawClient) -> None:
    """A part that has other bytes after a crash is dropped, and the upload begins anew."""
    data = random.Random(3).randbytes(2 * CHUNK_BYTES)
    blob = blob_of(data)

    def act(client: RawClient, id_: str) -> None:
        first = upload_messages(id_, blob, data[:CHUNK_BYTES])
        assert client.stub.Upload(first, timeout=CALL_S).received_bytes == CHUNK_BYTES
        (part,) = arena.server.folder.glob(f"spool/*/up/*/{blob.id}.part")
        part.write_bytes(bytes(CHUNK_BYTES))
        opening = pb.UploadOpen(instruction_id=id_, blob=blob, offset=CHUNK_BYTES)
        rest = piece(data[CHUNK_BYTES:], offset=CHUNK_BYTES)
        with refused(grpc.StatusCode.FAILED_PRECONDITION, match="offset=0"):
            client.stub.Upload(iter([pb.UploadMessage(open=opening), rest]), timeout=CALL_S)
        client.upload(id_, data, blob=blob)

    attack(arena, mallory, act)


def test_many_blobs(arena: Arena, mallory: RawClient) -> None:
    """One reply cannot fill the disk with blobs: their number and their sum are bounded."""

    def act(client: RawClient, id_: str) -> None:
        for _ in range(64 + 1):  # one may be the reply itself
            client.upload(id_, b"x")
        with refused(EXHAUSTED, match="at most 64 blobs"):
            client.upload(id_, b"x")

    attack(arena, mallory, act)


def test_sum_of_blobs(arena: Arena, mallory: RawClient) -> None:
    """Many blobs together are no larger than one may be."""

    def act(client: RawClient, id_: str) -> None:
        client.upload(id_, b"x")
        blob = blob_of(b"x", size_bytes=BLOB_BYTES_MAX)
        with refused(EXHAUSTED, match="exceeds"):
            client.stub.Upload(upload_messages(id_, blob, b"x"), timeout=CALL_S)

    attack(arena, mallory, act)


def test_many_transfers(arena: Arena, mallory: RawClient) -> None:
    """One client holds few transfers at once, and none of anybody else's."""

    def act(client: RawClient, id_: str) -> None:
        done = threading.Event()

        def held() -> Iterator[pb.UploadMessage]:
            yield pb.UploadMessage(open=pb.UploadOpen(instruction_id=id_, blob=blob_of(b"x")))
            done.wait(CALL_S)

        calls = [client.stub.Upload.future(held(), timeout=CALL_S) for _ in range(8)]
        try:
            wait_until(lambda: len(list(arena.server.folder.glob("spool/*/up/*/*.part"))) == 8)
            with refused(grpc.StatusCode.UNAVAILABLE, match="under way already"):
                client.upload(id_, b"y")
        finally:
            done.set()
            for call in calls:
                assert not call.result().complete

    attack(arena, mallory, act)


def test_plain_bytes(tmp_path: Path) -> None:
    """Arrays that are no tensors are bounded before they are read into memory."""
    path = tmp_path / "x.safetensors"
    header = b'{"a":{"dtype":"U8","shape":[1073741824],"data_offsets":[0,1073741824]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + (1 << 30))
    info = pb.ArrayInfo(name="a", dtype="float32", shape=[8], stype="torch.Tensor")
    blob = pb.Blob(id="x", size_bytes=path.stat().st_size)
    metadata = pb.Metadata(message_type="train")
    envelope = pb.Envelope(metadata=metadata, records=[arrays_of(blob, [info])])
    with pytest.raises(LimitError, match="1073741824 plain bytes"):
        decode(envelope, lambda blob: path)


def test_plain_bytes_of_all_records(tmp_path: Path) -> None:
    """Many records that name one file are bounded together: it would be read for each of them."""
    path, size = tmp_path / "x.safetensors", 64 << 20
    header = f'{{"a":{{"dtype":"U8","shape":[{size}],"data_offsets":[0,{size}]}}}}'.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)
    info = pb.ArrayInfo(name="a", dtype="float32", shape=[8], stype="torch.Tensor")
    blob = pb.Blob(id="x", size_bytes=path.stat().st_size)
    records = [arrays_of(blob, [info]) for _ in range(200)]
    for number, record in enumerate(records):
        record.name = f"arrays-{number}"
    envelope = pb.Envelope(metadata=pb.Metadata(message_type="train"), records=records)
    with pytest.raises(LimitError, match="plain bytes, more than"):
        decode(envelope, lambda blob: path)


def test_requests_for_certificates(server: LiveServer, arena: Arena, mallory: RawClient) -> None:
    """A signing request of a megabyte is refused, by a stranger and by a client."""
    with server.enrollment() as channel, refused(EXHAUSTED):
        EnrollmentStub(channel).Enroll(pb.EnrollRequest(csr_pem=b"x" * (1 << 20)), timeout=CALL_S)
    with refused(INVALID, match="exceeds"):
        mallory.stub.Renew(pb.RenewRequest(csr_pem=b"x" * (200 << 10)), timeout=CALL_S)
    with refused(EXHAUSTED):
        mallory.stub.Renew(pb.RenewRequest(csr_pem=b"x" * MESSAGE_BYTES_MAX), timeout=CALL_S)
    assert arena.play().counted == ALONE
