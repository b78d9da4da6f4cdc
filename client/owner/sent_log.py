"""What has left this site: one row for each answer to the server, written before its first byte leaves.

The log is a file of its own, `sent.sqlite`, which is read without Meadow, too. After a power cut its last
rows may be missing; the death of a process loses none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from ...transport.database import Database, TableLayout
from ...transport.fleet_pb2 import Instruction, Reply

__all__ = ["SentLog", "SentRow", "sent_rows"]

FILE_NAME: Final = "sent.sqlite"
RESULTS_KEPT_MAX: Final = 100_000
REFUSALS_KEPT_MAX: Final = 10_000
"""A server can cause refusals without end, which must not displace the results."""
TEXT_CHARS_MAX: Final = 500
REFUSED: Final = "refused"
FAILED: Final = "failed"
_LAYOUT: Final = TableLayout(
    versions=(
        (
            """
CREATE TABLE IF NOT EXISTS sent (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at_s REAL NOT NULL,              -- since 1970
    instruction_id TEXT NOT NULL,
    run_id TEXT NOT NULL,            -- 64 unsigned bits: more than SQLite's integers hold
    round TEXT NOT NULL,             -- as the server names it
    app TEXT NOT NULL,
    sha256 TEXT NOT NULL,            -- of the app's content
    kind TEXT NOT NULL,              -- the message's type, or refused, or failed
    bytes INTEGER NOT NULL,          -- of the message and of its files
    reason TEXT NOT NULL,            -- that was given for a refusal or a failure
    digest TEXT NOT NULL             -- SHA-256 of the message, whose files it names by size and checksum
);
CREATE INDEX IF NOT EXISTS sent_by_digest ON sent (digest);
""",
        ),
    ),
    sealed={},
    remedy="move it away; the agent begins a new one",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRow:
    """An answer that has left, or was about to when the agent was killed."""

    number: int
    at_s: float
    instruction_id: str
    run_id: str
    round: str
    app: str
    sha256: str
    kind: str
    bytes: int
    reason: str
    digest: str


class SentLog:
    """Appends to the log of a client's folder."""

    def __init__(self, directory: Path, *, clock: Callable[[], float]) -> None:
        """Open the log, or create it.

        Raises:
            DamageError: the file is not as it was written.
            StoreError: the disk fails.
        """
        self._database = Database(directory / FILE_NAME, _LAYOUT, sync=False)
        self._clock = clock

    def write(self, reply: Reply, instruction: Instruction | None, *, size_bytes: int) -> None:
        """Append a row; an answer that is sent once more, as it was not confirmed, has one already.

        `instruction` is None for an answer that an earlier process has made.

        Raises:
            StoreError: the disk is full or fails.
        """
        metadata = reply.envelope.metadata
        kind, reason = metadata.message_type, ""
        if reply.refused:
            kind, reason = REFUSED, reply.refused
        elif reply.envelope.HasField("error"):
            kind, reason = FAILED, reply.envelope.error.reason
        about = instruction.envelope.metadata if instruction is not None else metadata
        app = instruction.app if instruction is not None else None
        run_id = instruction.run_id if instruction is not None else metadata.run_id
        refusal = kind in (REFUSED, FAILED)
        digest = sha256(reply.SerializeToString(deterministic=True)).hexdigest()
        with self._database.transaction() as rows:
            if rows.execute("SELECT 1 FROM sent WHERE digest = ?", (digest,)).fetchone():
                return
            rows.execute(
                "INSERT INTO sent (at_s, instruction_id, run_id, round, app, sha256, kind, bytes, reason,"
                " digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    self._clock(),
                    reply.instruction_id,
                    str(run_id),
                    about.group_id[:TEXT_CHARS_MAX],
                    app.name[:TEXT_CHARS_MAX] if app is not None else "",
                    app.sha256[:TEXT_CHARS_MAX] if app is not None else "",
                    kind[:TEXT_CHARS_MAX],
                    size_bytes,
                    reason[:TEXT_CHARS_MAX],
                    digest,
                ),
            )
            rows.execute(
                f"DELETE FROM sent WHERE number IN (SELECT number FROM sent WHERE kind"
                f" {'' if refusal else 'NOT '}IN ('{REFUSED}', '{FAILED}')"
                " ORDER BY number DESC LIMIT -1 OFFSET ?)",
                (REFUSALS_KEPT_MAX if refusal else RESULTS_KEPT_MAX,),
            )

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def sent_rows(directory: Path, *, last: int, run_id: int | None = None) -> list[SentRow]:
    """Return the last rows of a client's log, oldest first; an agent may be running.

    Raises:
        DamageError: the file is not as it was written.
        StoreError: the disk fails.
    """
    if not (directory / FILE_NAME).exists():
        return []
    condition, values = (
        ("", [last]) if run_id is None else ("WHERE run_id = ?", [str(run_id), last])
    )
    with closing(Database(directory / FILE_NAME, _LAYOUT, sync=False)) as database:
        rows = database.rows(f"SELECT * FROM sent {condition} ORDER BY number DESC LIMIT ?", values)
    return [SentRow(**dict(row)) for row in reversed(rows)]
