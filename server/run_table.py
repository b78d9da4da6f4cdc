"""Runs in the journal: what was submitted, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass

from .database import Database

__all__ = ["RunRow", "RunTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run; `ready` is the worker's serialised `WorkerReady`, once it has one."""

    id: int
    app: str
    sha256: str
    settings: str
    status: str
    cause: str
    round: int
    rounds: int
    ready: bytes | None
    submitted_at_s: float
    finished_at_s: float | None


class RunTable:
    """Runs by number."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def submit(self, app: str, sha256: str, settings: str, *, now_s: float) -> int:
        """Record a new run and return its id; nothing happens until its status is queued."""
        with self._db.transaction() as db:
            cursor = db.execute(
                "INSERT INTO runs (app, sha256, settings, status, submitted_at_s)"
                " VALUES (?, ?, ?, 'arriving', ?)",
                (app, sha256, settings, now_s),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def begin(self, run_id: int, app: str, sha256: str) -> None:
        """Queue a run whose app is in place."""
        with self._db.transaction() as db:
            db.execute(
                "UPDATE runs SET status = 'queued', app = ?, sha256 = ? WHERE id = ?",
                (app, sha256, run_id),
            )

    def requeue(self, run_id: int) -> bool:
        """Queue a run again that has failed or was stopped; returns whether it was one."""
        with self._db.transaction() as db:
            cursor = db.execute(
                "UPDATE runs SET status = 'queued', cause = '', finished_at_s = NULL"
                " WHERE id = ? AND status IN ('failed', 'stopped')",
                (run_id,),
            )
        return cursor.rowcount == 1

    def status(
        self, run_id: int, status: str, *, cause: str = "", now_s: float | None = None
    ) -> None:
        """Change a run's status; `now_s` marks its end."""
        with self._db.transaction() as db:
            db.execute(
                "UPDATE runs SET status = ?, cause = ?, finished_at_s = ? WHERE id = ?",
                (status, cause, now_s, run_id),
            )

    def ready(self, run_id: int, *, rounds: int, ready: bytes) -> None:
        """Record what the worker found in the app."""
        with self._db.transaction() as db:
            db.execute(
                "UPDATE runs SET rounds = ?, ready = ? WHERE id = ?", (rounds, ready, run_id)
            )

    def all(self, *statuses: str) -> list[RunRow]:
        """Return the runs with one of these statuses, or all, oldest first."""
        marks = ",".join("?" * len(statuses))
        where = f"WHERE status IN ({marks})" if statuses else ""
        return [RunRow(**row) for row in self._db.sealed("runs", f"{where} ORDER BY id", statuses)]

    def get(self, run_id: int) -> RunRow | None:
        """Return one run."""
        rows = self._db.sealed("runs", "WHERE id = ?", (run_id,))
        return RunRow(**rows[0]) if rows else None
