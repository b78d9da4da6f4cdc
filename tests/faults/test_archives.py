"""Case 21: apps and run folders whose names lead elsewhere, or that grow when they are unpacked."""

from __future__ import annotations

import io
import os
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from meadow.errors import ProtocolError
from meadow.server.remote.runs import _receive
from meadow.transport import fleet_pb2 as pb

from .arena import Arena
from .live_server import CALL_S, LiveServer, refused

INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
GOOD = {"meadow.toml": b"", "task.py": b"task = None"}
REWRITTEN = ("journal.sqlite", ".head.")
"""Files that come and go while the daemon writes its journal, and the head of its audit log."""
MEMORY_BYTES_MAX = 200 << 20
"""An archive of 64 MiB may be held twice, and unpacked file by file."""


def archive_of(
    *entries: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED
) -> bytes:
    """Return a zip archive of a good app and of these."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, data in (*GOOD.items(), *entries):
            archive.writestr(name, data, method)
    return buffer.getvalue()


def special(kind: int, target: bytes = b"/etc/passwd") -> bytes:
    """Return an archive with an entry that is no plain file."""
    entry = zipfile.ZipInfo("special")
    entry.create_system, entry.external_attr = 3, (kind | 0o777) << 16
    return archive_of((entry, target))


def patched(data: bytes, offset: int, value: int, form: str) -> bytes:
    """Return an archive whose last directory entry says something else."""
    at = data.rindex(b"PK\x01\x02") + offset
    return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


def corrupt(data: bytes) -> bytes:
    """Return an archive whose compressed data are none."""
    at = data.index(b"x.bin") + len(b"x.bin")
    return data[:at] + b"\xff" * 20 + data[at + 20 :]


def many_entries() -> bytes:
    """Return a small archive that lists a million files."""
    good = archive_of()
    start, end = good.index(b"PK\x01\x02"), good.rindex(b"PK\x05\x06")
    directory = good[start:end] * 300_000
    tail = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 65535, 65535, len(directory), start, 0)
    return good[:start] + directory + tail


BIG = archive_of(("x.bin", os.urandom(100_000)))
ARCHIVES: dict[str, Callable[[], bytes]] = {
    **{
        f"named {name[:30]!r}": lambda name=name: archive_of((name, b"x"))
        for name in (
            "../evil.py", "/tmp/evil.py", "a/../../evil.py", "a/..", "..\\evil.py", "C:evil.py",
            "folder/", ".", ".hidden.py", "runs/x.py", "task.pyc", "x" * 300, "a/" * 2000 + "x", "new\nline", "\x1b[2J", "task.py",
            "task.py/x",
        )
    },
    "link": lambda: special(stat.S_IFLNK),
    "device": lambda: special(stat.S_IFCHR),
    "pipe": lambda: special(stat.S_IFIFO),
    "bomb": lambda: archive_of(*((f"{n}.bin", bytes(8 << 20)) for n in range(9))),
    "bomb that lies": lambda: patched(archive_of(("b", bytes(65 << 20))), 24, 10, "<I"),
    "3,000 files": lambda: archive_of(*((f"{n}.py", b"") for n in range(3000))),
    "600,000 entries": many_entries,
    "encrypted": lambda: patched(BIG, 8, 1, "<H"),
    "of another method": lambda: archive_of(("x", b"x"), method=zipfile.ZIP_LZMA),
    "of no method": lambda: patched(BIG, 10, 99, "<H"),
    "elsewhere": lambda: patched(BIG, 42, 1 << 31, "<I"),
    "corrupt": lambda: corrupt(BIG),
    "cut": lambda: BIG[: len(BIG) // 2],
    "no archive": lambda: b"PK\x03\x04" + b"x" * 1000,
    "nothing": lambda: b"",
}  # fmt: skip


def submit(
    server: LiveServer, data: bytes, *settings: str, name: str = "evil", size: int | None = None
) -> pb.Run:
    """Submit an archive."""
    size = len(data) if size is None else size
    opened = pb.SubmitOpen(size_bytes=size, name=name, settings=settings)
    pieces = [data[start : start + (256 << 10)] for start in range(0, len(data), 256 << 10)]
    messages = [pb.SubmitMessage(open=opened), *(pb.SubmitMessage(zip=piece) for piece in pieces)]
    return server.admin.Submit(iter(messages), timeout=CALL_S)


def files_of(server: LiveServer) -> set[Path]:
    """Return all files in and beside the server's folder, and where the archives aim at."""
    beside = (
        path
        for path in server.folder.parent.rglob("*")
        if path.is_file() and not path.name.startswith(REWRITTEN)
    )
    return {*beside, *Path("/tmp").glob("evil.py")}


@pytest.mark.parametrize("case", ARCHIVES)
def test_archive(server: LiveServer, case: str) -> None:
    """A hostile archive is refused in a line; nothing of it is left, and nothing is elsewhere."""
    data, before, memory = ARCHIVES[case](), files_of(server), server.resident_bytes()
    with refused(INVALID, match="the app's archive"):
        submit(server, data)
    assert files_of(server) == before
    assert server.resident_bytes() - memory < MEMORY_BYTES_MAX
    run = server.admin.Runs(pb.Empty(), timeout=CALL_S).runs[-1]
    assert run.status == "failed" and "\n" not in run.cause and run.cause
    with refused(grpc.StatusCode.FAILED_PRECONDITION, match="never began"):
        server.admin.Resume(pb.RunId(id=run.id), timeout=CALL_S)


@pytest.mark.parametrize("name", ["", "..", "../x", "/x", "a/b", ".x", "x" * 65, "a\nb", "\x1b[2J"])
def test_app_name(server: LiveServer, name: str) -> None:
    """The name of an app is a plain word."""
    with refused(INVALID, match="is not an app's name"):
        submit(server, archive_of(), name=name)


def test_size(server: LiveServer) -> None:
    """An archive is no larger than it says, and says no more than the limit."""
    with refused(EXHAUSTED, match="at most"):
        submit(server, b"", size=1 << 40)
    with refused(EXHAUSTED, match="larger than its declared size"):
        submit(server, b"x" * (2 << 20), size=10)


@pytest.mark.parametrize("setting", ["app.task=../x:y", "run.rounds=-1", "no.key=1", "x", "=", ""])
def test_settings(server: LiveServer, setting: str) -> None:
    """Settings that mean nothing are refused before anything runs."""
    with refused(INVALID):
        submit(server, archive_of(), setting)


def test_no_such_run(server: LiveServer) -> None:
    """A number that no run has is answered with that."""
    for number in (0, 10**6, (1 << 64) - 1):
        with refused(grpc.StatusCode.NOT_FOUND, match="there is no run"):
            server.admin.ShowRun(pb.RunId(id=number), timeout=CALL_S)


def test_pull(arena: Arena) -> None:
    """A run folder is sent without what links in it point at."""
    arena.play()
    folder, secret = arena.model.parent, arena.server.folder / "ca" / "key.pem"
    (folder / "innocent.txt").symlink_to(secret)
    (folder / "more").symlink_to(secret.parent)
    messages = list(arena.server.admin.Pull(pb.PullRequest(run_id=arena.run.id), timeout=CALL_S))
    names = {message.file for message in messages if message.HasField("file")}
    assert "model.safetensors" in names
    assert not any("innocent" in name or "more" in name or "app/" in name for name in names)
    assert b"PRIVATE KEY" not in b"".join(message.data for message in messages)


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "a/../../x", "", ".", "a\x00b", "..\\x", "\x1b["]
)
def test_pull_from_a_hostile_server(tmp_path: Path, name: str) -> None:
    """A server cannot make `meadow run pull` write outside of its folder."""
    target = tmp_path / "target"
    messages = [pb.PullMessage(file=name), pb.PullMessage(data=b"evil")]
    with pytest.raises(ProtocolError, match="the server names"):
        _receive(iter(messages), target)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
