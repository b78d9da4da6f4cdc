"""The table of runs: each run's app, status and progress."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from .database import JournalDatabase

__all__ = ["OVER", "RunRow", "RunTable"]

OVER = ("finished", "stopped", "failed", "abandoned")
"""Statuses of runs that do not go on by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run; `ready` is its worker's serialised `WorkerReady`, None before that arrives."""

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

    def __init__(self, db: JournalDatabase) -> None:
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

    def relay(self, run_id: int, app: str, sha256: str, *, now_s: float) -> None:
        """Record, once, a run of a server above, which numbers it."""
        with self._db.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO runs (id, app, sha256, settings, status, submitted_at_s)"
                " VALUES (?, ?, ?, '[]', 'relayed', ?)",
                (run_id, app, sha256, now_s),
            )

    def begin(self, run_id: int, app: str, sha256: str) -> None:
        """Queue a run whose app is in place."""
        with self._db.transaction() as db:
            db.execute(
                "UPDATE runs SET status = 'queued', app = ?, sha256 = ? WHERE id = ?",
                (app, sha256, run_id),
            )

    def sites(
        self,
        run_id: int,
        *,
        tags: Collection[str],
        asked: Collection[int],
        by_sampling: bool = False,
        relays: Collection[int] = (),
        behind: Collection[int] = (),
    ) -> list[int]:
        """Return the node ids of a run's sites; a site's position in the list is its index.

        The first call stores the list: all sites that are enrolled, not revoked and have all of
        these tags, by node id. Later calls append sites of `asked` that have joined since. Where
        `by_sampling`, the cohort is secret, and the list must not reveal it: then all sites that
        have joined are appended. Relays are no sites; the clients `behind` them are, as if they were
        enrolled here.
        """
        with self._db.transaction() as db:
            stored = self._db.sealed("run_sites", "WHERE run_id = ?", (run_id,))
            before: list[int] = json.loads(stored[0]["node_ids"]) if stored else []
            enrolled = [] if stored and not by_sampling else [*_enrolled(db, tags), *behind]
            joined = sorted({*enrolled, *asked} - {*before, *relays})
            if joined:
                db.execute(
                    "INSERT OR REPLACE INTO run_sites (run_id, node_ids) VALUES (?, ?)",
                    (run_id, json.dumps([*before, *joined])),
                )
        return [*before, *joined]

    def requeue(self, run_id: int) -> bool:
        """Queue a failed or stopped run again; return False if it is neither."""
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
        """Record the app's rounds and terms, as reported by the worker."""
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
        """Return a run, None if there is no such run."""
        rows = self._db.sealed("runs", "WHERE id = ?", (run_id,))
        return RunRow(**rows[0]) if rows else None


def _enrolled(db: sqlite3.Connection, tags: Collection[str]) -> list[int]:
    rows = db.execute(
        "SELECT node_id, (SELECT group_concat(tag, ' ') FROM site_tags"
        " WHERE site_tags.node_id = sites.node_id) AS tags FROM sites"
        " WHERE serial IS NOT NULL AND revoked_at_s IS NULL"
    )
    return [row["node_id"] for row in rows if set(tags) <= set((row["tags"] or "").split())]
