"""The table of steps: their instructions, and the accepted replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...transport.fleet_pb2 import Envelope
from ...transport.relaying import clients_behind
from .database import JournalDatabase

__all__ = ["InstructionRow", "StepTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionRow:
    """One instruction and, once it is answered, its reply, as serialised envelopes."""

    id: str
    run_id: int
    step_key: str
    node_id: int
    envelope: bytes
    state: str
    """pending, answered or pruned."""
    reply: bytes | None


class StepTable:
    """Steps and instructions; the transaction that stores a reply also marks its instruction as
    answered, so that a reply is accepted at most once."""

    def __init__(self, db: JournalDatabase) -> None:
        self._db = db

    def open(
        self,
        run_id: int,
        key: str,
        group_id: str,
        *,
        quorum: int,
        deadline_s: float,
        instructions: Sequence[tuple[str, int, bytes]],
    ) -> list[InstructionRow]:
        """Record a step and its instructions (id, node, envelope); return them as recorded.

        If the step exists, nothing changes: a restarted worker repeats its steps, and the first
        record is valid.
        """
        with self._db.transaction() as db:
            fresh = db.execute(
                "INSERT OR IGNORE INTO steps (run_id, key, group_id, quorum, deadline_s)"
                " VALUES (?, ?, ?, ?, ?)",
                (run_id, key, group_id, quorum, deadline_s),
            ).rowcount
            if fresh:
                db.executemany(
                    "INSERT INTO instructions (id, run_id, step_key, node_id, envelope, state)"
                    " VALUES (?, ?, ?, ?, ?, 'pending')",
                    [(id_, run_id, key, node, envelope) for id_, node, envelope in instructions],
                )
        return self.instructions(run_id, key)

    def instructions(self, run_id: int, step_key: str) -> list[InstructionRow]:
        """Return a step's instructions in the order of `open`."""
        rows = self._db.sealed(
            "instructions", "WHERE run_id = ? AND step_key = ? ORDER BY rowid", (run_id, step_key)
        )
        return [InstructionRow(**row) for row in rows]

    def instruction_ids(self, run_id: int) -> set[str]:
        """Return the ids of all recorded instructions of a run."""
        found = self._db.rows("SELECT id FROM instructions WHERE run_id = ?", (run_id,))
        return {row["id"] for row in found}

    def is_over(self, run_id: int, key: str) -> bool:
        """Return whether a step is over."""
        rows = self._db.sealed("steps", "WHERE run_id = ? AND key = ?", (run_id, key))
        return bool(rows and rows[0]["ended"])

    def runs(self) -> list[int]:
        """Return the runs that have steps, oldest first."""
        return [
            row["run_id"] for row in self._db.rows("SELECT DISTINCT run_id FROM steps ORDER BY 1")
        ]

    def groups(self, run_id: int) -> list[str]:
        """Return the groups of a run that have steps."""
        rows = self._db.rows("SELECT DISTINCT group_id FROM steps WHERE run_id = ?", (run_id,))
        return [row["group_id"] for row in rows]

    def unfinished(self, run_id: int) -> list[dict[str, Any]]:
        """Return the rows of a run's steps that are not over."""
        return self._db.sealed("steps", "WHERE run_id = ? AND ended = 0", (run_id,))

    def pending(self) -> int:
        """Return how many instructions of all runs wait for an answer."""
        (row,) = self._db.rows("SELECT count(*) FROM instructions WHERE state = 'pending'")
        return int(row[0])

    def cohorts(self, run_id: int) -> dict[str, list[int]]:
        """Return the cohorts of the rounds that are not committed yet, by group: those below a relay
        for the relay."""
        rows = self._db.rows(
            "SELECT group_id, node_id, envelope FROM instructions JOIN steps"
            " ON steps.run_id = instructions.run_id AND steps.key = step_key"
            " WHERE steps.run_id = ? AND group_id != ''"
            " AND key IN (group_id || '/train/0', group_id || '/train.secure/0')",
            (run_id,),
        )
        cohorts: dict[str, list[int]] = {}
        for row in rows:
            behind = clients_behind(Envelope.FromString(row["envelope"]))
            cohorts.setdefault(row["group_id"], []).extend(behind or [row["node_id"]])
        return cohorts

    def answer(
        self, replies: Sequence[tuple[str, bytes]], *, ends: tuple[int, str] | None
    ) -> list[bool]:
        """Store replies (instruction's id, reply) in one transaction; return which were stored.

        One to an instruction that is not pending changes nothing. `ends` is the step (run and key)
        that these replies complete.
        """
        with self._db.transaction() as db:
            stored = [
                db.execute(
                    "UPDATE instructions SET state = 'answered', reply = ?"
                    " WHERE id = ? AND state = 'pending'",
                    (reply, id_),
                ).rowcount
                > 0
                for id_, reply in replies
            ]
            if ends is not None and any(stored):
                db.execute("UPDATE steps SET ended = 1 WHERE run_id = ? AND key = ?", ends)
        return stored

    def end(self, run_id: int, key: str) -> list[str]:
        """End a step and prune its pending instructions; return their ids."""
        with self._db.transaction() as db:
            db.execute("UPDATE steps SET ended = 1 WHERE run_id = ? AND key = ?", (run_id, key))
            pruned = db.execute(
                "UPDATE instructions SET state = 'pruned'"
                " WHERE run_id = ? AND step_key = ? AND state = 'pending' RETURNING id",
                (run_id, key),
            ).fetchall()
        return [row["id"] for row in pruned]

    def forget(self, run_id: int, group_id: str | None) -> list[str]:
        """Delete a group's steps, or all of the run's, and return their instructions' ids."""
        chosen = "SELECT key FROM steps WHERE run_id = ? AND (? IS NULL OR group_id = ?)"
        values = (run_id, group_id, group_id)
        with self._db.transaction() as db:
            gone = db.execute(
                f"DELETE FROM instructions WHERE run_id = ? AND step_key IN ({chosen})"
                " RETURNING id",
                (run_id, *values),
            ).fetchall()
            db.execute("DELETE FROM steps WHERE run_id = ? AND (? IS NULL OR group_id = ?)", values)
        return [row["id"] for row in gone]
