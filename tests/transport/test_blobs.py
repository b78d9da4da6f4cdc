"""Blobs arrive whole, wherever the connection broke, and only if they are what was declared."""

from __future__ import annotations

import errno
import os
import random
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meadow.errors import LimitError, MeadowError, ProtocolError, StoreError
from meadow.transport import part
from meadow.transport.blobs import (
    CHUNK_BYTES_MAX,
    Receiver,
    blob_path,
    check_blob_id,
    chunks,
    new_blob_id,
)
from meadow.transport.durable import replacing, sweep
from meadow.transport.file_pool import SPARE_BYTES_MIN, FilePool
from meadow.transport.fleet_pb2 import Blob, Chunk
from meadow.transport.part import Part

DATA = bytes(range(256)) * 40
FOLDER_ONCE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def blob_of(data: bytes, **changes: object) -> Blob:
    """Declare a blob truthfully, unless told otherwise."""
    said = {"id": "b-1", "size_bytes": len(data), "crc32": zlib.crc32(data), **changes}
    return Blob(**said)  # type: ignore[arg-type]


def chunk_of(data: bytes, offset: int = 0) -> Chunk:
    """Make one right chunk."""
    return Chunk(offset=offset, data=data)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Put the data to send into a file."""
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make an empty folder that receives."""
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@given(offset=st.integers(0, len(DATA)), chunk_bytes=st.integers(1, len(DATA) + 1))
@FOLDER_ONCE
def test_chunks_cover_the_rest_of_a_file(tmp_path: Path, offset: int, chunk_bytes: int) -> None:
    """From any offset and in any size the chunks are the file's bytes, in order."""
    (tmp_path / "f").write_bytes(DATA)
    got = b""
    for chunk in chunks(tmp_path / "f", offset, chunk_bytes):
        assert chunk.offset == offset + len(got)
        assert 0 < len(chunk.data) <= chunk_bytes
        got += chunk.data
    assert got == DATA[offset:]


def test_chunks_of_what_cannot_be_read(source: Path, tmp_path: Path) -> None:
    """A missing file, a link and an offset behind the end are typed errors."""
    (tmp_path / "link").symlink_to(source)
    for path in (tmp_path / "missing", tmp_path / "link", tmp_path):
        with pytest.raises(StoreError):
            list(chunks(path))
    with pytest.raises(ProtocolError, match="behind the end"):
        list(chunks(source, len(DATA) + 1))
    with pytest.raises(ValueError, match="chunk_bytes"):
        list(chunks(source, 0, 0))


@pytest.mark.parametrize("cut", range(12))
@pytest.mark.parametrize("torn", [0, 1, 700])
def test_transfers_go_on_after_a_cut(folder: Path, source: Path, cut: int, torn: int) -> None:
    """Cut after any chunk, even inside a write, and begun anew, a transfer ends with the file."""
    with Receiver(folder, blob_of(DATA), size_max=1 << 20) as receiver:
        for _, chunk in zip(range(cut), chunks(source, 0, 1024), strict=False):
            receiver.write(chunk)
    part = folder / "b-1.part"
    torn = min(torn, part.stat().st_size)
    os.truncate(part, part.stat().st_size - torn)
    with Receiver(folder, blob_of(DATA), size_max=1 << 20) as receiver:
        assert receiver.received_bytes == min(cut * 1024, len(DATA)) - torn
        assert receiver.complete == (cut >= 10 and not torn)
        for chunk in chunks(source, receiver.received_bytes, 1000):
            receiver.write(chunk)
        path = receiver.finish()
        assert receiver.finish() == path == blob_path(folder, "b-1")
    assert path.read_bytes() == DATA
    assert os.listdir(folder) == [path.name]


def test_an_empty_blob(folder: Path) -> None:
    """A blob of no bytes needs no chunk."""
    with Receiver(folder, blob_of(b""), size_max=0) as receiver:
        assert receiver.complete
        assert receiver.finish().read_bytes() == b""


def test_a_blob_that_is_here_is_complete(folder: Path) -> None:
    """If the acknowledgement was lost, the sender is told at once that all is here."""
    for _ in range(2):
        with Receiver(folder, blob_of(DATA), size_max=1 << 20) as receiver:
            if not receiver.complete:
                receiver.write(chunk_of(DATA))
            assert receiver.received_bytes == len(DATA)
            receiver.finish()
    with pytest.raises(ProtocolError, match="other bytes"):
        Receiver(folder, blob_of(DATA[:-1] + b"x"), size_max=1 << 20)
    assert blob_path(folder, "b-1").read_bytes() == DATA


WRONG: dict[str, tuple[Chunk, type[MeadowError], str]] = {
    "a gap": (chunk_of(DATA[200:300], 200), ProtocolError, "a chunk at 200, not 100"),
    "a repetition": (chunk_of(DATA[:100]), ProtocolError, "a chunk at 0, not 100"),
    "no data": (chunk_of(b"", 100), LimitError, "0 bytes"),
    "too much": (chunk_of(DATA[100:] + b"!", 100), LimitError, "were declared"),
    "a huge chunk": (chunk_of(bytes(CHUNK_BYTES_MAX + 1), 100), LimitError, "chunk of"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_chunks_change_nothing(folder: Path, case: str) -> None:
    """A wrong chunk is refused by type, and the right one is taken after it."""
    chunk, error, text = WRONG[case]
    with Receiver(folder, blob_of(DATA), size_max=1 << 20) as receiver:
        receiver.write(chunk_of(DATA[:100]))
        with pytest.raises(error, match=text):
            receiver.write(chunk)
        assert receiver.received_bytes == 100
        receiver.write(chunk_of(DATA[100:], 100))
        assert receiver.finish().read_bytes() == DATA


def test_a_wrong_whole_is_dropped(folder: Path) -> None:
    """If all chunks are right and the whole is not, nothing is kept and it starts anew."""
    with Receiver(folder, blob_of(DATA, crc32=1), size_max=1 << 20) as receiver:
        receiver.write(chunk_of(DATA))
        with pytest.raises(ProtocolError, match="checksum"):
            receiver.finish()
    assert os.listdir(folder) == []


def test_a_damaged_part_is_found_out(folder: Path) -> None:
    """A part that changed on disk between two connections does not become a blob."""
    with Receiver(folder, blob_of(DATA), size_max=1 << 20) as receiver:
        receiver.write(chunk_of(DATA[:5000]))
    part = folder / "b-1.part"
    part.write_bytes(b"X" + part.read_bytes()[1:])
    with Receiver(folder, blob_of(DATA), size_max=1 << 20) as receiver:
        receiver.write(chunk_of(DATA[5000:], 5000))
        with pytest.raises(ProtocolError, match="checksum"):
            receiver.finish()
    assert os.listdir(folder) == []


def test_a_part_of_something_longer_is_dropped(folder: Path) -> None:
    """What is left of a longer blob with the same id does not disturb."""
    (folder / "b-1.part").write_bytes(DATA)
    with Receiver(folder, blob_of(b"abc"), size_max=10) as receiver:
        assert receiver.received_bytes == 0
        receiver.write(chunk_of(b"abc"))
        assert receiver.finish().read_bytes() == b"abc"


def test_missing_bytes_are_named(folder: Path) -> None:
    """A blob cannot be finished early, nor after it was let go."""
    with Receiver(folder, blob_of(DATA), size_max=1 << 20) as receiver:
        receiver.write(chunk_of(DATA[:10]))
        with pytest.raises(ProtocolError, match=f"only 10 of {len(DATA)} bytes"):
            receiver.finish()
    with pytest.raises(StoreError, match="not being received"):
        receiver.finish()
    assert os.listdir(folder) == ["b-1.part"]


def test_size_is_refused_before_anything_is_there(folder: Path) -> None:
    """More than the bound, or than the disk has, is refused before a file is made."""
    with pytest.raises(LimitError, match="exceeds 10"):
        Receiver(folder, blob_of(DATA), size_max=10)
    with pytest.raises(LimitError, match="the disk has"):
        Receiver(folder, blob_of(DATA, size_bytes=1 << 60), size_max=1 << 62)
    assert os.listdir(folder) == []


def test_two_receivers_of_one_blob(folder: Path) -> None:
    """A second connection cannot write into the same part while the first one is open."""
    with Receiver(folder, blob_of(DATA), size_max=1 << 20) as first:
        with pytest.raises(StoreError, match="being received already"):
            Receiver(folder, blob_of(DATA), size_max=1 << 20)
        first.write(chunk_of(DATA[:10]))
    with Receiver(folder, blob_of(DATA), size_max=1 << 20) as second:
        assert second.received_bytes == 10


def test_a_full_disk_leaves_the_part_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails half-way is taken back, and goes on once there is room."""

    def fail(fd: int, data: bytes) -> None:
        os.write(fd, data[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    with Receiver(folder, blob_of(DATA), size_max=1 << 20) as receiver:
        receiver.write(chunk_of(DATA[:100]))
        with monkeypatch.context() as patch:
            patch.setattr(part, "write_all", fail)
            with pytest.raises(StoreError, match="No space left"):
                receiver.write(chunk_of(DATA[100:], 100))
        assert (folder / "b-1.part").read_bytes() == DATA[:100]
        receiver.write(chunk_of(DATA[100:], 100))
        assert receiver.finish().read_bytes() == DATA


@pytest.mark.parametrize(
    "blob_id",
    [
        "",
        ".",
        "..",
        "../x",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "A",
        "a.b",
        "a\n",
        "a\0",
        "é",
        "x" * 65,
        "٣",
        "a b",
        "~",
        "$HOME",
    ],
)
def test_ids_cannot_leave_the_folder(folder: Path, blob_id: str) -> None:
    """Whatever could name another file is no id, wherever it is used."""
    with pytest.raises(ProtocolError, match="no blob id"):
        check_blob_id(blob_id)
    with pytest.raises(ProtocolError, match="no blob id"):
        blob_path(folder, blob_id)
    with pytest.raises(ProtocolError, match="no blob id"):
        Receiver(folder, blob_of(DATA, id=blob_id), size_max=1 << 20)
    assert os.listdir(folder) == []


def test_new_ids_are_ids() -> None:
    """Every id made here is valid and another one."""
    assert len({check_blob_id(new_blob_id()) for _ in range(1000)}) == 1000


def test_a_link_in_the_place_of_a_part_is_refused(folder: Path, source: Path) -> None:
    """A symbolic link that lies there is not followed."""
    (folder / "b-1.part").symlink_to(source)
    with pytest.raises(StoreError):
        Receiver(folder, blob_of(DATA * 2), size_max=1 << 20)
    assert source.read_bytes() == DATA


@given(st.lists(st.tuples(st.integers(0, 12), st.binary(max_size=6)), max_size=12))
@FOLDER_ONCE
def test_any_chunks_raise_typed_errors_only(
    tmp_path: Path, attempts: list[tuple[int, bytes]]
) -> None:
    """Whatever is sent: the part only ever holds what was accepted, and never too much."""
    (tmp_path / "b-1.part").unlink(missing_ok=True)
    accepted = b""
    with Receiver(tmp_path, blob_of(bytes(8)), size_max=8) as receiver:
        for offset, data in attempts:
            try:
                receiver.write(chunk_of(data, offset))
                accepted += data
            except ProtocolError:
                pass
            assert receiver.received_bytes == len(accepted) <= 8
            assert (tmp_path / "b-1.part").read_bytes() == accepted


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    """What dies while it writes leaves the old file, and what it left can be swept."""
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replacing(path, fsync=True) as fd:
        os.write(fd, b"ne")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["x"]
    assert path.read_bytes() == b"old"
    (tmp_path / ".x.0123.tmp").write_bytes(b"ne")
    assert sweep(tmp_path) == 1
    assert os.listdir(tmp_path) == ["x"]
    with (
        pytest.raises(StoreError, match="cannot be written"),
        replacing(tmp_path / "missing" / "x", fsync=False),
    ):
        raise AssertionError("there was a file to write to")


# ---------------------------------------------------------------------- over a spare file

LARGE = random.Random(5).randbytes(3 * SPARE_BYTES_MIN)
PIECE = SPARE_BYTES_MIN // 2


@pytest.fixture
def file_pool(tmp_path: Path) -> FilePool:
    """Keep one spare file, a little longer than the blob."""
    kept = FilePool(tmp_path / "spare")
    (tmp_path / "old").write_bytes(b"?" * (len(LARGE) + 7))
    kept.keep(tmp_path / "old")
    return kept


def large_from(offset: int, count: int = 100) -> Iterator[Chunk]:
    """Cut the large blob into chunks."""
    for start in range(offset, min(len(LARGE), offset + count * PIECE), PIECE):
        yield chunk_of(LARGE[start : start + PIECE], start)


def large(folder: Path, file_pool: FilePool) -> Receiver:
    """Open a receiver of the large blob."""
    return Receiver(folder, blob_of(LARGE), size_max=len(LARGE), file_pool=file_pool)


@pytest.mark.parametrize("cut", range(7))
def test_over_a_spare_file(folder: Path, file_pool: FilePool, cut: int) -> None:
    """Let go after any chunk, a transfer over a spare file goes on and ends with the blob."""
    with large(folder, file_pool) as receiver:
        assert os.listdir(folder) == ["b-1.0.over"]
        for chunk in large_from(0, cut):
            receiver.write(chunk)
    assert os.listdir(folder) == ["b-1.part"]
    with large(folder, file_pool) as receiver:
        assert receiver.received_bytes == cut * PIECE
        assert receiver.resumed == (cut > 0)
        for chunk in large_from(receiver.received_bytes):
            receiver.write(chunk)
        assert receiver.finish().read_bytes() == LARGE
    assert os.listdir(folder) == ["b-1.safetensors"]


@pytest.mark.parametrize("cut", range(7))
def test_killed_over_a_spare_file(
    folder: Path, file_pool: FilePool, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed receiver leaves is as much of the blob as its name says, and nothing else."""
    monkeypatch.setattr(part, "NAMED_EVERY_BYTES", 2 * PIECE)
    receiver = large(folder, file_pool)
    for chunk in large_from(0, cut):
        receiver.write(chunk)
    with pytest.raises(StoreError, match="being received already"):
        large(folder, file_pool)
    monkeypatch.setattr(Part, "close", lambda self: os.close(self._fd))
    receiver.close()
    monkeypatch.undo()
    with large(folder, file_pool) as receiver:
        assert receiver.received_bytes == cut // 2 * 2 * PIECE
        for chunk in large_from(receiver.received_bytes):
            receiver.write(chunk)
        assert receiver.finish().read_bytes() == LARGE
    assert os.listdir(folder) == ["b-1.safetensors"]


def test_a_full_disk_takes_spare_files_first(
    folder: Path, file_pool: FilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spare files never are the reason that a blob is refused."""
    honest = os.statvfs
    full = iter([0, 1 << 30])

    def statvfs(path: Path) -> object:
        found = honest(path)
        return SimpleNamespace(f_bavail=next(full), f_frsize=found.f_frsize)

    monkeypatch.setattr(os, "statvfs", statvfs)
    with large(folder, file_pool) as receiver:
        assert os.listdir(folder) == ["b-1.part"]
        assert receiver.received_bytes == 0


def test_its_folder_goes_away(folder: Path, file_pool: FilePool) -> None:
    """A transfer whose run was deleted ends like one without a spare file."""
    with large(folder, file_pool) as receiver:
        for chunk in large_from(0, 3):
            receiver.write(chunk)
        shutil.rmtree(folder)
    assert not folder.exists()
