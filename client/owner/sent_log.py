"""What has left this site: one row for each answer to the server, written before its first byte leaves.

The log is a file of its own, `sent.sqlite`, which is read without Meadow, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from ...transport.database import Database, TableLayout
from ...transport.fleet_pb2 import Instruction, Reply

__all__ = ["Outgoing", "SentFor", "SentLog", "SentRow", "sent_rows"]

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
        (
            """
ALTER TABLE sent ADD COLUMN norm REAL;           -- L2, of the update in the message
ALTER TABLE sent ADD COLUMN epsilon REAL;        -- that was booked for it, by its own noise alone
ALTER TABLE sent ADD COLUMN record_epsilon REAL; -- likewise, of a single record
ALTER TABLE sent ADD COLUMN refused INTEGER NOT NULL DEFAULT 0;  -- or failed
ALTER TABLE sent ADD COLUMN place INTEGER NOT NULL DEFAULT 0;    -- counts those that are, and the others
UPDATE sent SET refused = kind IN ('refused', 'failed'), place = number;
CREATE INDEX sent_by_run ON sent (run_id, number);
CREATE UNIQUE INDEX sent_by_place ON sent (refused, place);
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
    norm: float | None
    """The L2 norm of the update in it, as `update_norm` has it; None without one."""
    epsilon: float | None
    """What the owner's ledger booked with it: the epsilon of this round alone; None if it has no such noise.

    That of all rounds together is less than the sum."""
    record_epsilon: float | None
    """Likewise, of a single record."""


_COLUMNS: Final = ", ".join(field.name for field in fields(SentRow))


@dataclass(frozen=True, slots=True, kw_only=True)
class SentFor:
    """What an answer was made for, and what was in it; norm and epsilons as in `SentRow`."""

    run_id: int
    round: str
    app: str
    sha256: str
    norm: float | None = None
    epsilon: float | None = None
    record_epsilon: float | None = None

    @classmethod
    def of(cls, instruction: Instruction) -> SentFor:
        """Return that of an instruction, before anything was done for it."""
        return cls(
            run_id=instruction.run_id,
            round=instruction.envelope.metadata.group_id,
            app=instruction.app.name,
            sha256=instruction.app.sha256,
        )


class Outgoing(NamedTuple):
    """A reply, and what it is the reply to."""

    reply: Reply
    about: SentFor


class SentLog:
    """Appends to the log of a client's folder."""

    def __init__(self, directory: Path, *, clock: Callable[[], float]) -> None:
        """Open the log, or create it.

        Raises:
            DamageError: the file is not as it was written.
            StoreError: the disk fails.
        """
        self._database = Database(directory / FILE_NAME, _LAYOUT)
        self._clock = clock

    def write(self, answer: Outgoing, *, size_bytes: int) -> None:
        """Append a row, durably; an answer that is sent once more, as it was not confirmed, has one already.

        Raises:
            StoreError: the disk is full or fails.
        """
        reply, about = answer
        kind, reason = reply.envelope.metadata.message_type, ""
        if reply.refused:
            kind, reason = REFUSED, reply.refused
        elif reply.envelope.HasField("error"):
            kind, reason = FAILED, reply.envelope.error.reason
        refusal = kind in (REFUSED, FAILED)
        digest = sha256(reply.SerializeToString(deterministic=True)).hexdigest()
        with self._database.transaction() as rows:
            if rows.execute("SELECT 1 FROM sent WHERE digest = ?", (digest,)).fetchone():
                return
            last = rows.execute("SELECT max(place) FROM sent WHERE refused = ?", (refusal,))
            place = (last.fetchone()[0] or 0) + 1
            rows.execute(
                "INSERT INTO sent (at_s, instruction_id, run_id, round, app, sha256, kind, bytes, reason,"
                " digest, norm, epsilon, record_epsilon, refused, place)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    self._clock(),
                    reply.instruction_id,
                    str(about.run_id),
                    about.round[:TEXT_CHARS_MAX],
                    about.app[:TEXT_CHARS_MAX],
                    about.sha256[:TEXT_CHARS_MAX],
                    kind[:TEXT_CHARS_MAX],
                    size_bytes,
                    reason[:TEXT_CHARS_MAX],
                    digest,
                    about.norm,
                    about.epsilon,
                    about.record_epsilon,
                    refusal,
                    place,
                ),
            )
            kept = REFUSALS_KEPT_MAX if refusal else RESULTS_KEPT_MAX
            rows.execute(
                "DELETE FROM sent WHERE refused = ? AND place <= ?", (refusal, place - kept)
            )

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def sent_rows(
    directory: Path,
    *,
    last: int,
    run_id: int | None = None,
    before: int | None = None,
    refused: bool | None = None,
) -> list[SentRow]:
    """Return the last rows of a client's log, oldest first; an agent may be running.

    Of one run, if `run_id` is given, and those `before` the row of this number; `refused` is whether only
    refusals and failures are wanted, or none of them.

    Raises:
        DamageError: the file is not as it was written.
        StoreError: the disk fails.
    """
    if not (directory / FILE_NAME).exists():
        return []
    conditions, values = ["TRUE"], list[object]()
    if run_id is not None:
        conditions, values = [*conditions, "run_id = ?"], [*values, str(run_id)]
    if before is not None:
        conditions, values = [*conditions, "number < ?"], [*values, before]
    if refused is not None:
        conditions, values = [*conditions, "refused = ?"], [*values, refused]
    with closing(Database(directory / FILE_NAME, _LAYOUT)) as database:
        rows = database.rows(
            f"SELECT {_COLUMNS} FROM sent WHERE {' AND '.join(conditions)}"
            f" ORDER BY {'number' if refused is None else 'place'} DESC LIMIT ?",
            [*values, last],
        )
    return [SentRow(**dict(row)) for row in reversed(rows)]
