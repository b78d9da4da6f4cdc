"""What goes to a worker for a group, and what comes back: files in three folders.

shared/  of a round: the broadcast, its params once for all groups
inbox/   of a group: who is in it, what each keeps, and messages that are no broadcast
outbox/  of an attempt at a group: the report, single replies, states, the partial sums
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ....errors import StoreError

__all__ = [
    "BROADCAST",
    "MESSAGES",
    "REPLIES",
    "STATES",
    "SUMS",
    "GroupJob",
    "Report",
    "WorkerSettings",
    "read_frames",
    "write_frames",
]

BROADCAST = "broadcast"
MESSAGES = "messages"
STATES = "states"
REPLIES = "replies"
SUMS = "sums"
_JOB = "job.json"
_REPORT = "report.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker needs to know to run clients of an app."""

    folder: str
    sha256: str
    overrides: Sequence[str]
    clients: int
    run_id: int
    run_config: Mapping[str, bool | int | float | str]
    node_config: Mapping[str, bool | int | float | str]
    inner: str
    """The executor that runs a group."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJob:
    """A group: its clients, and for a broadcast what beside its content their messages have."""

    clients: Sequence[int]
    combine: bool = False
    message_type: str = ""
    """Empty if the messages are in a file of their own."""
    group_id: str = ""
    id_prefix: str = ""

    def write(self, inbox: Path) -> None:
        _write(inbox / _JOB, asdict(self))

    @classmethod
    def read(cls, inbox: Path) -> GroupJob:
        return cls(**_read(inbox / _JOB))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A worker's report on a group, beside the replies.

    `weights`, `table_*` belong to the partial sums; there are none if `table_clients` is empty.
    """

    weights: Sequence[float] = ()
    table_clients: Sequence[int] = ()
    table_examples: Sequence[float | None] = ()
    table_metrics: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    seconds: Sequence[tuple[int, float]] = ()
    tracebacks: Sequence[tuple[int, str]] = ()
    events: Sequence[tuple[str, Mapping[str, Any]]] = ()
    output: Sequence[tuple[str, str]] = ()
    """What the clients printed."""

    def write(self, outbox: Path) -> None:
        _write(outbox / _REPORT, asdict(self))

    @classmethod
    def read(cls, outbox: Path) -> Report:
        return cls(**_read(outbox / _REPORT))


def _write(path: Path, value: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(value, default=str))
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    return value


_HEADER = struct.Struct(">QQ")


def write_frames(path: Path, frames: Iterable[tuple[int, bytes]]) -> None:
    """Write frames as they come: each number, length and bytes.

    Raises:
        StoreError: the disk, or the shared memory, is full.
    """
    try:
        with path.open("wb") as file:
            for number, data in frames:
                file.write(_HEADER.pack(number, len(data)))
                file.write(data)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def read_frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield what `write_frames` was given, in its order.

    Raises:
        StoreError: the file is missing or cut short.
    """
    try:
        with path.open("rb") as file:
            while header := file.read(_HEADER.size):
                number, size = _HEADER.unpack(header)
                data = file.read(size)
                if len(data) < size:
                    raise StoreError(f"{path} is cut short")
                yield number, data
    except (OSError, struct.error) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
