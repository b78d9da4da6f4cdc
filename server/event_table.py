"""Events in the journal: what happened in a run, and on the server (run 0)."""

from __future__ import annotations

import sqlite3

from .database import Database

__all__ = ["EVENTS_PER_RUN_MAX", "EventTable"]

EVENTS_PER_RUN_MAX = 20_000


class EventTable:
    """What people are told, in order; the oldest of a run are dropped beyond a bound."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def record(self, run_id: int, kind: str, json: str, *, now_s: float, round: int = 0) -> int:
        """Append an event (run 0: the server's own) and return its number."""
        with self._db.transaction() as db:
            cursor = db.execute(
                "INSERT INTO events (at_s, run_id, kind, json) VALUES (?, ?, ?, ?)",
                (now_s, run_id, kind, json),
            )
            if round:
                db.execute("UPDATE runs SET round = ? WHERE id = ?", (round, run_id))
            db.execute(
                "DELETE FROM events WHERE run_id = ? AND id <= ?",
                (run_id, (cursor.lastrowid or 0) - EVENTS_PER_RUN_MAX),
            )
        return cursor.lastrowid or 0

    def after(self, run_id: int, *, after: int = 0) -> list[sqlite3.Row]:
        """Return a run's events (id, at_s, kind, json) that came after number `after`."""
        return self._db.rows(
            "SELECT * FROM events WHERE run_id = ? AND id > ? ORDER BY id", (run_id, after)
        )
