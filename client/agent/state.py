"""Makes work count exactly once: a reply and the app's client state are one durable record.

An instruction may arrive twice, if its acknowledgement was lost or a process died. Its reply and
the app's `Context.state` are committed together before the reply is sent, so that a second
delivery finds both or neither.

    DIR/runs/<run id>/reply-<digest>/   tensor files of a reply
    DIR/runs/<run id>/state/            tensor files of the app's client state
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from ...transport.blobs import blob_path, blobs_of
from ...transport.file_pool import FilePool
from ...transport.fleet_pb2 import Envelope, Instruction, Reply
from ..owner.database import AgentDatabase
from ..owner.ledger import content_of
from ..owner.sent_log import Outgoing, SentFor

__all__ = ["AgentState", "Recorded"]

RUNS_MAX = 64
"""The most runs whose state is stored; the least recently used one is deleted first."""

REPLIES_MAX = 64
"""The most replies that wait for acknowledgement; the oldest is deleted first."""

ACKNOWLEDGE = "UPDATE replies SET acknowledged = 1 WHERE instruction_id = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """An instruction's reply as it was committed."""

    instruction_id: str
    envelope: Envelope
    about: SentFor

    @property
    def answer(self) -> Outgoing:
        """The reply as it is sent."""
        return Outgoing(
            Reply(instruction_id=self.instruction_id, envelope=self.envelope), self.about
        )


class AgentState:
    """The agent's state of its runs, in its database and the folder `runs`.

    Attributes:
        file_pool: the agent's unneeded files, for reuse.
    """

    def __init__(self, database: AgentDatabase, directory: Path) -> None:
        """Open the state of the agent on the folder `directory`."""
        self._database = database
        self._runs = directory / "runs"
        self.file_pool = FilePool(directory / "spare")
        self._acknowledged: deque[str] = deque(maxlen=REPLIES_MAX)
        """Acknowledged, but not written yet; with refusals, which are not in the database."""

    def reply_dir(self, run_id: int, instruction_id: str) -> Path:
        """Return the folder of a reply's files; the id comes from a peer, so it is hashed."""
        digest = sha256(instruction_id.encode()).hexdigest()[:24]
        return self._runs / str(run_id) / f"reply-{digest}"

    def state_dir(self, run_id: int) -> Path:
        """Return the folder of the files of an app's client state."""
        return self._runs / str(run_id) / "state"

    def state_of(self, run_id: int) -> bytes:
        """Return the client state of a run's app, empty at first."""
        rows = self._database.sealed("runs", "WHERE run_id = ?", (str(run_id),))
        return cast(bytes, rows[0]["state"]) if rows else b""

    def recorded(self, instruction_id: str) -> Recorded | None:
        """Return the reply to an instruction that was already executed, None if it was not."""
        found = self._select("WHERE instruction_id = ?", (instruction_id,))
        return found[0] if found else None

    def unacknowledged(self) -> list[Recorded]:
        """Return the replies that the server has not confirmed, oldest first."""
        return self._select("WHERE acknowledged = 0 ORDER BY number")

    def last(self) -> Recorded | None:
        """Return the newest reply."""
        found = self._select("ORDER BY number DESC LIMIT 1")
        return found[0] if found else None

    def record(
        self, instruction: Instruction, reply: Envelope, state: bytes, about: SentFor
    ) -> Recorded:
        """Commit a reply together with the client state after its execution, and what it is about.

        Guarantees: durable on return. A run keeps its newest reply and those that are not yet
            acknowledged; older ones are deleted, with their files.
        """
        run_id, key = instruction.run_id, str(instruction.run_id)
        acknowledged, self._acknowledged = self._acknowledged, deque(maxlen=REPLIES_MAX)
        with self._database.transaction() as rows:
            rows.executemany(ACKNOWLEDGE, [(id_,) for id_ in acknowledged])
            rows.execute(
                "UPDATE spent SET answered = 1 WHERE content = ?", (content_of(instruction),)
            )
            rows.execute(
                "INSERT INTO replies (instruction_id, run_id, envelope, app, sha256, norm, epsilon,"
                " record_epsilon) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    instruction.id,
                    key,
                    reply.SerializeToString(),
                    about.app,
                    about.sha256,
                    about.norm,
                    about.epsilon,
                    about.record_epsilon,
                ),
            )
            rows.execute(
                "INSERT OR REPLACE INTO runs SELECT ?, ?, coalesce(max(used), 0) + 1 FROM runs",
                (key, state),
            )
            dropped = rows.execute(
                "DELETE FROM replies WHERE instruction_id <> ? AND run_id = ? AND"
                " (acknowledged = 1 OR number <= (SELECT max(number) FROM replies) - ?)"
                " RETURNING run_id, instruction_id",
                (instruction.id, key, REPLIES_MAX),
            ).fetchall()
            forgotten = rows.execute(
                "DELETE FROM runs WHERE used <= (SELECT max(used) FROM runs) - ? RETURNING run_id",
                (RUNS_MAX,),
            ).fetchall()
            rows.executemany("DELETE FROM replies WHERE run_id = ?", forgotten)
        for run, instruction_id in dropped:
            self.file_pool.keep_all(self.reply_dir(int(run), instruction_id))
        for (run,) in forgotten:
            shutil.rmtree(self._runs / run, ignore_errors=True)
        self._sweep(run_id, Envelope.FromString(state))
        return Recorded(instruction_id=instruction.id, envelope=reply, about=about)

    def acknowledge(self, instruction_id: str) -> None:
        """Note that the server has a reply, or no longer wants it; durable with the next record.

        If that is lost, the next agent process sends the reply once more, and the server
        acknowledges it again.
        """
        self._acknowledged.append(instruction_id)

    def close(self) -> None:
        """Write the noted acknowledgements."""
        with self._database.transaction() as rows:
            rows.executemany(ACKNOWLEDGE, [(id_,) for id_ in self._acknowledged])

    def _select(self, condition: str, values: tuple[object, ...] = ()) -> list[Recorded]:
        return [_recorded(row) for row in self._database.sealed("replies", condition, values)]

    def _sweep(self, run_id: int, state: Envelope) -> None:
        """Delete the files of earlier states, and of attempts that were not committed."""
        folder = self.state_dir(run_id)
        present = {blob_path(folder, blob.id).name for blob in blobs_of(state)}
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in present:
                path.unlink(missing_ok=True)


def _recorded(row: Mapping[str, Any]) -> Recorded:
    envelope = Envelope.FromString(row["envelope"])
    about = SentFor(
        run_id=int(row["run_id"]),
        round=envelope.metadata.group_id,
        app=row["app"],
        sha256=row["sha256"],
        norm=row["norm"],
        epsilon=row["epsilon"],
        record_epsilon=row["record_epsilon"],
    )
    return Recorded(instruction_id=row["instruction_id"], envelope=envelope, about=about)
