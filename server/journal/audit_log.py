"""The audit log: who did what to the server, one line an action, each chained to the line before.

A line is canonical JSON (sorted keys, no spaces, ASCII): its number `n`, its time `at`, `who` called
with which `role` from which `address`, the `call`, `what` it was about, its `outcome`, the hash of the
line `before`, and its own `hash`: the SHA-256 of the line without that field. The first line's
`before` is the fingerprint of the server's authority.

The lines are in numbered files, the oldest of which are dropped beyond a bound; a line says so. `head`
has the number and hash of the last line, so that a missing end is noticed. Several processes may append.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from ...errors import StoreError
from ...transport.durable import make_folder, sync_folder, write_all, write_file

__all__ = ["AuditLog", "AuditVerdict", "Head", "parse_head"]

FILE_BYTES_MAX: Final = 8 << 20
FILES_MAX: Final = 32
LINE_BYTES_MAX: Final = 16 << 10
WHAT_BYTES_MAX: Final = 4096
TEXT_CHARS_MAX: Final = 160
ITEMS_MAX: Final = 16
"""Entries of a line's `what`, and of each list in it."""
DROPPED: Final = "audit.dropped"
_FIELDS: Final = {
    "n": int, "at": str, "who": str, "role": str, "address": str, "call": str, "what": dict,
    "outcome": str, "before": str, "hash": str,
}  # fmt: skip
HEAD: Final = "head"


class Head(NamedTuple):
    """The number and the hash of a line."""

    n: int
    hash: str

    def __str__(self) -> str:
        return f"{self.n}:{self.hash}"


def parse_head(text: str) -> Head:
    """Return the head in a text such as `17:9f86...`.

    Raises:
        ValueError: it is none.
    """
    number, _, digits = text.strip().partition(":")
    if not number.isascii() or not number.isdecimal() or len(digits) != 64:
        raise ValueError("a head is a line's number, a colon, and 64 hexadecimal digits")
    int(digits, 16)
    return Head(int(number), digits.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerdict:
    """What a verification has found: the lines that are there, and the first problem, if any."""

    first: int
    head: Head | None
    problem: str = ""
    note: str = ""


class AuditLog:
    """The audit log in a folder; append-only."""

    def __init__(self, folder: Path, *, genesis: str, clock: Callable[[], float]) -> None:
        """`genesis` is what the first line is chained to."""
        self._folder = folder
        self._genesis = genesis
        self._clock = clock
        self._known: tuple[Path, int, Head] | None = None
        """The last file, its size, and the last line, as this process has left them."""

    @contextmanager
    def action(self, *, who: str, role: str, call: str, what: Mapping[str, Any]) -> Iterator[None]:
        """Record the block's beginning before it runs, and how it has ended.

        Raises:
            StoreError: the log cannot be written; the block does not run.
        """
        begun = self.append(who=who, role=role, call=call, what=what, outcome="begun")
        try:
            yield
        except BaseException as error:
            with suppress(StoreError):
                ended = {"of": begun, "reason": str(error)}
                self.append(who=who, role=role, call=call, what=ended, outcome="failed")
            raise
        self.append(who=who, role=role, call=call, what={"of": begun}, outcome="ok")

    def append(
        self,
        *,
        who: str,
        role: str,
        call: str,
        what: Mapping[str, Any],
        outcome: str,
        address: str = "",
    ) -> int:
        """Append a line and return its number, once it is durable.

        Raises:
            StoreError: the disk is full or fails.
        """
        fields = {
            "who": _short(who),
            "role": _short(role),
            "call": _short(call),
            "what": _plain(what),
            "outcome": _short(outcome),
            "address": _short(address),
        }
        try:
            if not self._folder.is_dir():
                make_folder(self._folder, mode=0o700)
                self._hand_over(self._folder)
            with self._locked():
                path, size, head = self._end()
                if size >= FILE_BYTES_MAX:
                    path, size, head = self._rotated(path, head)
                return self._write(path, size, head, fields)
        except OSError as error:
            text = f"{self._folder} cannot be written: {error.strerror or error}"
            raise StoreError(text) from error

    def lines(self, last: int) -> list[dict[str, Any]]:
        """Return the last lines, oldest first; those that cannot be read are left out."""
        found: list[dict[str, Any]] = []
        for path in reversed(self._files()):
            with suppress(FileNotFoundError):  # it was dropped meanwhile
                kept = [_parsed(raw) for raw in path.read_bytes().splitlines()[-last:]]
                found = [line for line in kept if line is not None] + found
            if len(found) >= last:
                break
        return found[-last:] if last else []

    def verify(self, witness: Head | None = None) -> AuditVerdict:
        """Check every line, the chain between them, and that the end is there.

        `witness` is a head that was kept elsewhere: the line must still be there and unchanged.
        """
        if not self._folder.is_dir():
            missing = "" if witness is None else f"the log is empty, without line {witness.n}"
            return AuditVerdict(first=0, head=None, problem=missing)
        with ExitStack() as opened:
            with (
                self._locked()
            ):  # no line is half written, and no file is dropped before it is open
                files = [opened.enter_context(path.open("rb")) for path in self._files()]
                sizes = [os.fstat(file.fileno()).st_size for file in files]
                anchor = self._anchor()
                anchored = (self._folder / HEAD).exists()
            chain = _Chain(self._genesis, [each for each in (anchor, witness) if each])
            for file, size in zip(files, sizes, strict=True):
                chain.read(file, size, is_last=file is files[-1])
                if chain.problem:
                    break
        problem = chain.problem or chain.missing(witness, "the head that was kept elsewhere")
        if not problem and anchor is None and (chain.head or anchored):
            problem = f"{HEAD} is missing or cannot be read, so that a missing end goes unnoticed"
        problem = problem or chain.missing(anchor, f"the file {HEAD}")
        return AuditVerdict(first=chain.first, head=chain.head, problem=problem, note=chain.note)

    # ------------------------------------------------------------------ the end of the log

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("[0-9]*.jsonl"), key=lambda path: int(path.stem))

    def _anchor(self) -> Head | None:
        with suppress(OSError, ValueError):
            return parse_head((self._folder / HEAD).read_text())
        return None

    def _end(self) -> tuple[Path, int, Head]:
        """Return the last file, its size and its last line; repair what a crash has left."""
        files = self._files()
        path = files[-1] if files else self._folder / "000001.jsonl"
        size = path.stat().st_size if files else 0
        if self._known is not None and self._known[:2] == (path, size):
            return self._known
        self._known = None
        torn = _cut_torn(path) if files else 0
        size -= torn
        last = _last_head(files) or Head(0, self._genesis)
        anchor = self._anchor()
        if torn:
            fields = _note("audit.repaired", {"torn_bytes": torn})
            self._write(path, size, max(last, anchor or last), fields)
            return self._end()
        if anchor is not None and anchor.n > last.n:  # the gap stays visible
            fields = _note("audit.lines_missing", {"through": anchor.n})
            self._write(path, size, anchor, fields)
            return self._end()
        return path, size, last

    def _rotated(self, path: Path, head: Head) -> tuple[Path, int, Head]:
        """Begin the next file; drop the oldest, beyond the bound, after a line that says so."""
        path = path.with_name(f"{int(path.stem) + 1:06d}.jsonl")
        dropped = self._files()[: -(FILES_MAX - 1)]
        if not dropped:
            return path, 0, head
        floor = _floor_of(self._files()[len(dropped)])
        said = {"through": floor.n, "hash": floor.hash} if floor else {}
        self._write(path, 0, head, _note(DROPPED, said))
        for each in dropped:
            each.unlink()
        return self._end()

    def _write(self, path: Path, size: int, before: Head, fields: Mapping[str, Any]) -> int:
        at = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        line = {**fields, "n": before.n + 1, "at": at, "before": before.hash}
        data = _canonical({**line, "hash": _hash_of(line)}) + b"\n"
        head = Head(before.n + 1, _hash_of(line))
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._known = None
        try:
            try:
                write_all(fd, data)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(fd, size)  # a full disk takes a part of it
                raise
            os.fsync(fd)
        finally:
            os.close(fd)
        if not size:
            self._hand_over(path)
            sync_folder(self._folder)
        write_file(self._folder / HEAD, f"{head}\n".encode(), mode=0o600)
        self._hand_over(self._folder / HEAD)
        self._known = path, size + len(data), head
        return head.n

    def _hand_over(self, path: Path) -> None:
        """Give what root has made to the owner of the server's folder, whose daemon appends, too."""
        owner = self._folder.parent.stat()
        if os.geteuid() == 0 != owner.st_uid:
            os.chown(path, owner.st_uid, owner.st_gid)


class _Chain:
    """Follows the chain of lines from file to file, up to the first problem."""

    def __init__(self, genesis: str, watched: list[Head]) -> None:
        self._genesis = genesis
        self._seen: dict[int, str | None] = {each.n: None for each in watched}
        self._floor: Head | None = None
        self._said: set[Head] = set()
        self.first = 0
        self.head: Head | None = None
        self.problem = ""
        self.note = ""

    def read(self, file: BinaryIO, size: int, *, is_last: bool) -> None:
        """Follow the lines in the first `size` bytes of a file."""
        name = Path(file.name).name
        number = 0
        while file.tell() < size and not self.problem:
            raw = file.readline(min(LINE_BYTES_MAX, size - file.tell()))
            number += 1
            torn = is_last and not raw.endswith(b"\n") and file.tell() == size
            if torn and len(raw) < LINE_BYTES_MAX:
                self.note = f"{name}: the last {len(raw)} bytes are a line that a crash cut short"
                return
            if problem := self._follow(raw):
                self.problem = f"{name}, line {number}: {problem}"
        if is_last and not self.problem and self._floor and self._floor not in self._said:
            self.problem = f"the lines before line {self.first} are missing"

    def _follow(self, raw: bytes) -> str:
        line = _parsed(raw.removesuffix(b"\n"))
        if line is None or not raw.endswith(b"\n"):
            return "it is not a line as the server writes it"
        own = {key: value for key, value in line.items() if key != "hash"}
        if line["hash"] != _hash_of(own):
            return f"line {line['n']} was changed since it was written"
        n, before = line["n"], line["before"]
        if self.head is None:
            self.first = n
            if n == 1 and before != self._genesis:
                return "the log is another server's"
            self._floor = Head(n - 1, before) if n > 1 else None
        elif n != self.head.n + 1:
            return f"line {n} follows line {self.head.n}"
        elif before != self.head.hash:
            return f"line {n} does not continue line {self.head.n}"
        self.head = Head(n, line["hash"])
        if n in self._seen:
            self._seen[n] = line["hash"]
        if line["call"] == DROPPED:
            self._said.add(Head(line["what"].get("through", 0), line["what"].get("hash", "")))
        return ""

    def missing(self, watched: Head | None, whose: str) -> str:
        """Return what is wrong with a line that should be there, empty if it is there."""
        if watched is None or self._seen[watched.n] == watched.hash:
            return ""
        last = self.head.n if self.head else 0
        if watched.n > last:
            return f"{whose} has line {watched.n}, and the log ends with line {last}: its end is missing"
        if watched.n < self.first:
            return (
                f"{whose} has line {watched.n}, which was dropped: the log begins at {self.first}"
            )
        return f"line {watched.n} is not the one in {whose}: the log was written anew"


def _note(call: str, what: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a line that the log writes about itself."""
    return {
        "who": "audit", "role": "local", "call": call, "what": dict(what), "outcome": "ok",
        "address": "",
    }  # fmt: skip


def _canonical(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _hash_of(line: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(line)).hexdigest()


def _parsed(raw: bytes) -> dict[str, Any] | None:
    """Return a line's fields, None if it is not one as this module writes it."""
    try:
        line = json.loads(raw)
        if not isinstance(line, dict) or _canonical(line) != raw:
            return None
    except (ValueError, RecursionError):
        return None
    return line if {key: type(value) for key, value in line.items()} == _FIELDS else None


def _cut_torn(path: Path) -> int:
    """Remove what follows a file's last complete line; return how many bytes that were."""
    with path.open("r+b") as file:
        if _tail(file).endswith(b"\n"):
            return 0
        file.seek(0)
        data = file.read()
        kept = data.rfind(b"\n") + 1
        file.truncate(kept)
        os.fsync(file.fileno())
    return len(data) - kept


def _floor_of(path: Path) -> Head | None:
    """Return what a file's first line is chained to, None if that cannot be read."""
    with path.open("rb") as file:
        line = _parsed(file.readline(LINE_BYTES_MAX).removesuffix(b"\n"))
    return Head(line["n"] - 1, line["before"]) if line else None


def _last_head(files: list[Path]) -> Head | None:
    """Return the last line of these files, None if there is none that can be read."""
    for path in reversed(files):
        with path.open("rb") as file:
            lines = _tail(file).splitlines()
        if lines:
            line = _parsed(lines[-1])
            return Head(line["n"], line["hash"]) if line else None
    return None


def _tail(file: BinaryIO) -> bytes:
    size = os.fstat(file.fileno()).st_size
    file.seek(max(0, size - 2 * LINE_BYTES_MAX))
    return file.read()


def _plain(what: Mapping[str, Any]) -> dict[str, Any]:
    """Return a short, printable summary of these values."""
    plain = {_short(key): _value(each) for key, each in list(what.items())[:ITEMS_MAX]}
    data = _canonical(plain)
    return plain if len(data) <= WHAT_BYTES_MAX else {"shortened": data[:1000].decode()}


def _value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, list | tuple):
        more = [f"and {len(value) - ITEMS_MAX} more"] if len(value) > ITEMS_MAX else []
        return [_short(str(each), 40) for each in value[:ITEMS_MAX]] + more
    return _short(str(value))


def _short(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    return "".join(mark if mark.isprintable() else "?" for mark in text[:chars_max])
