"""The audit log: every line is chained to the one before, and what was changed is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meadow.errors import StoreError
from meadow.server.journal import audit_log
from meadow.server.journal.audit_log import AuditLog, Head, parse_head

GENESIS = "a" * 64


def log_of(folder: Path) -> AuditLog:
    """Return the log in a folder, as a process that has just begun."""
    return AuditLog(folder / "audit", genesis=GENESIS, clock=lambda: 1_700_000_000.0)


def write(folder: Path, count: int = 5) -> AuditLog:
    """Append some lines."""
    log = log_of(folder)
    for number in range(count):
        log.append(who="ann", role="admin", call="Admin.Stop", what={"run": number}, outcome="ok")
    return log


def only(folder: Path) -> Path:
    """Return the log's only file."""
    (path,) = (folder / "audit").glob("*.jsonl")
    return path


def change(text: str, other: str) -> Callable[[list[bytes]], list[bytes]]:
    """Return a harm that writes something else in the third line."""
    return lambda lines: [
        *lines[:2], lines[2].replace(text.encode(), other.encode()), *lines[3:]
    ]  # fmt: skip


HARMS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "changed": (change('"who":"ann"', '"who":"bob"'), "line 3: line 3 was changed"),
    "spaces": (change('"who":', '"who": '), "line 3: it is not a line"),
    "no JSON": (change("{", "["), "line 3: it is not a line"),
    "a field more": (change('"at":', '"and":1,"at":'), "line 3: it is not a line"),
    "a line less": (lambda lines: lines[:2] + lines[3:], "line 3: line 4 follows line 2"),
    "swapped": (lambda lines: [*lines[:1], lines[2], lines[1], *lines[3:]], "line 2: line 3 follows"),
    "the first": (lambda lines: lines[1:], "the lines before line 2 are missing"),
    "the end": (lambda lines: lines[:3], "has line 5, and the log ends with line 3"),
    "a part of a line, too": (lambda lines: [*lines[:3], lines[3][:9]], "the log ends with line 3"),
    "all": (lambda lines: [], "has line 5, and the log ends with line 0"),
    "twice": (lambda lines: [*lines, lines[-1]], "line 6: line 5 follows line 5"),
    "many brackets": (lambda lines: [*lines, b"[" * 9000 + b"\n"], "line 6: it is not a line"),
    "long": (lambda lines: [b"x" * 100_000 + b"\n", *lines], "line 1: it is not a line"),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "text"), HARMS.values(), ids=HARMS.keys())
def test_the_first_bad_line_is_named(
    tmp_path: Path, harm: Callable[[list[bytes]], list[bytes]], text: str
) -> None:
    """And is named still after further lines: nothing that is written later hides it."""
    write(tmp_path)
    assert log_of(tmp_path).verify().problem == ""
    path = only(tmp_path)
    path.write_bytes(b"".join(harm(path.read_bytes().splitlines(keepends=True))))
    assert text in log_of(tmp_path).verify().problem
    write(tmp_path, 2)
    assert log_of(tmp_path).verify().problem != ""


def test_every_flipped_bit(tmp_path: Path) -> None:
    """No byte of a line, or of the head, can be another unnoticed."""
    write(tmp_path, 2)
    for path in (only(tmp_path), tmp_path / "audit" / "head"):
        data = path.read_bytes()
        for place in range(len(data) - (path.name == "head")):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            assert log_of(tmp_path).verify().problem, (path.name, place)
        path.write_bytes(data)
    assert not log_of(tmp_path).verify().problem


def test_another_servers_log(tmp_path: Path) -> None:
    """The chain begins with the authority's fingerprint."""
    write(tmp_path)
    other = AuditLog(tmp_path / "audit", genesis="b" * 64, clock=lambda: 0.0)
    assert "another server's" in other.verify().problem


def test_a_head_that_was_kept_elsewhere(tmp_path: Path) -> None:
    """It shows that a log was written anew, although every hash in it is right."""
    kept = write(tmp_path).verify().head
    assert kept is not None and parse_head(f" {kept}\n") == kept
    assert not write(tmp_path).verify(kept).problem
    for path in (tmp_path / "audit").iterdir():
        path.unlink()
    assert "the log ends with line 0" in log_of(tmp_path).verify(kept).problem
    log = write(tmp_path, 9)
    assert not log.verify().problem
    log.append(who="eve", role="admin", call="x", what={}, outcome="ok")
    assert not log.verify(kept).problem  # the same lines at the same times
    (tmp_path / "audit" / "head").unlink()
    only(tmp_path).unlink()
    log_of(tmp_path).append(who="eve", role="admin", call="x", what={}, outcome="ok")
    write(tmp_path, 9)
    assert not log.verify().problem
    assert "the log was written anew" in log.verify(kept).problem
    for text in ("", "5", "5:xyz", f"-1:{'a' * 64}", f"5:{'g' * 64}", f"²:{'a' * 64}"):
        with pytest.raises(ValueError, match=r"a head is|hexadecimal|base 16"):
            parse_head(text)


def test_a_missing_head(tmp_path: Path) -> None:
    """Without it a missing end would go unnoticed, so that is said."""
    write(tmp_path)
    (tmp_path / "audit" / "head").unlink()
    assert "head is missing" in log_of(tmp_path).verify().problem


@pytest.mark.parametrize("kept", range(0, 200, 7))
def test_a_torn_line_is_repaired_and_noted(tmp_path: Path, kept: int) -> None:
    """What a crash has left of a line is cut off, a line says so, and the chain goes on."""
    write(tmp_path, 2)
    path = only(tmp_path)
    with path.open("ab") as file:
        file.write(path.read_bytes()[:kept])
    found = log_of(tmp_path).verify()
    assert not found.problem and bool(found.note) == bool(kept)
    write(tmp_path, 1)
    found = log_of(tmp_path).verify()
    assert not found.problem and not found.note
    calls = [(line["call"], line["what"]) for line in log_of(tmp_path).lines(2)]
    expected = ("audit.repaired", {"torn_bytes": kept}) if kept else ("Admin.Stop", {"run": 1})
    assert calls[0] == expected


def test_between_a_line_and_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash there leaves a whole line, which the next one continues."""

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    write(tmp_path, 2)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(audit_log, "write_file", dies)
        write(tmp_path, 1)
    assert not log_of(tmp_path).verify().problem
    write(tmp_path, 1)
    found = log_of(tmp_path).verify()
    assert not found.problem and found.head is not None and found.head.n == 4


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half written stays, the caller is told, and it goes on when there is room."""
    log = write(tmp_path, 2)
    before = only(tmp_path).read_bytes()

    def half(fd: int, data: bytes) -> None:
        os.write(fd, data[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(StoreError, match="No space left"):
        patched.setattr(audit_log, "write_all", half)
        log.append(who="ann", role="admin", call="x", what={}, outcome="ok")
    assert only(tmp_path).read_bytes() == before
    log.append(who="ann", role="admin", call="x", what={}, outcome="ok")
    assert not log.verify().problem and [line["n"] for line in log.lines(9)] == [1, 2, 3]


def test_the_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain goes on from file to file; the oldest are dropped, and a line says which."""
    monkeypatch.setattr(audit_log, "FILE_BYTES_MAX", 1000)
    monkeypatch.setattr(audit_log, "FILES_MAX", 3)
    log = write(tmp_path, 40)
    files = sorted((tmp_path / "audit").glob("*.jsonl"))
    assert len(files) == 3 and all(path.stat().st_size < 2500 for path in files)
    found = log.verify()
    assert not found.problem and found.head is not None and 1 < found.first < found.head.n
    assert [line["n"] for line in log.lines(5)] == list(range(found.head.n - 4, found.head.n + 1))
    assert "was dropped" in log.verify(Head(1, GENESIS)).problem
    files[0].unlink()
    assert "are missing" in log_of(tmp_path).verify().problem
    write(tmp_path, 1)
    assert "are missing" in log_of(tmp_path).verify().problem


def test_what_a_line_holds_is_bounded(tmp_path: Path) -> None:
    """Whatever a caller sends, a line is short and can be printed."""
    log = write(tmp_path, 0)
    long = "ü\n\x1b\ud800" * 100_000
    for what in ({"x": long}, {long: [long] * 1000}, {f"{n}": [long] * 99 for n in range(999)}):
        log.append(who=long, role=long, call=long, what=what, outcome=long, address=long)
    data = only(tmp_path).read_bytes()
    assert all(len(line) < audit_log.LINE_BYTES_MAX for line in data.splitlines())
    assert not log.verify().problem
    assert all(json.dumps(line, ensure_ascii=False).isprintable() for line in log.lines(9))


def test_commands_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they write belongs to the folder's owner, as whom the daemon runs and appends."""
    given: dict[str, tuple[int, int]] = {}

    status = list(tmp_path.stat())
    status[4:6] = [1234, 1234]
    strangers = os.stat_result(status)

    def chown(path: Path, user: int, group: int) -> None:
        given[path.name] = (user, group)

    real = Path.stat
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", chown)
    monkeypatch.setattr(
        Path, "stat", lambda path, **more: strangers if path == tmp_path else real(path, **more)
    )
    write(tmp_path, 1)
    assert given == dict.fromkeys(("audit", "000001.jsonl", "head"), (1234, 1234))


APPENDING = """
import sys
from pathlib import Path
from meadow.server.journal.audit_log import AuditLog
log = AuditLog(Path(sys.argv[1]) / "audit", genesis="a" * 64, clock=lambda: 0.0)
while True:
    n = log.append(who="ann", role="admin", call="x", what={"text": "y" * 80}, outcome="ok")
    print(n, flush=True)
"""


def test_processes_that_are_killed(tmp_path: Path) -> None:
    """Two append at once and are killed: every line that was acknowledged is there, in one chain."""
    command = [sys.executable, "-c", APPENDING, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = []
    for process in both:
        assert process.stdout is not None
        told += [int(process.stdout.readline()) for _ in range(10)]
    for process in both:
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        told += [int(line) for line in process.stdout if line.endswith("\n")]
        process.wait()
    write(tmp_path, 1)
    found = log_of(tmp_path).verify()
    assert not found.problem and found.head is not None and found.head.n > max(told)
    assert len(set(told)) == len(told)
