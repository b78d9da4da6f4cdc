"""The journal's file: SQLite in WAL mode; a transaction is durable when it returns."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from ...errors import StoreError
from ...transport import database
from ...transport.database import TableLayout

__all__ = ["JOURNAL_LAYOUT", "JournalDatabase"]

_VERSION_1: Final = """
CREATE TABLE IF NOT EXISTS sites (
    node_id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
    serial TEXT, previous_serial TEXT, certificate_until_s REAL NOT NULL DEFAULT 0,
    connected INTEGER NOT NULL DEFAULT 0, seen_at_s REAL NOT NULL DEFAULT 0,
    revoked_at_s REAL, version TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS site_tags (
    node_id INTEGER NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (node_id, tag)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (
    hash TEXT PRIMARY KEY, name TEXT NOT NULL, expires_at_s REAL NOT NULL, used_at_s REAL);
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, app TEXT NOT NULL, sha256 TEXT NOT NULL,
    settings TEXT NOT NULL, status TEXT NOT NULL, cause TEXT NOT NULL DEFAULT '',
    round INTEGER NOT NULL DEFAULT 0, rounds INTEGER NOT NULL DEFAULT 0, ready BLOB,
    submitted_at_s REAL NOT NULL, finished_at_s REAL);
CREATE TABLE IF NOT EXISTS steps (
    run_id INTEGER NOT NULL, key TEXT NOT NULL, group_id TEXT NOT NULL,
    quorum INTEGER NOT NULL, deadline_s REAL NOT NULL, ended INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS instructions (
    id TEXT PRIMARY KEY, run_id INTEGER NOT NULL, step_key TEXT NOT NULL,
    node_id INTEGER NOT NULL, envelope BLOB NOT NULL, state TEXT NOT NULL, reply BLOB);
CREATE INDEX IF NOT EXISTS instructions_by_step ON instructions (run_id, step_key);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at_s REAL NOT NULL, run_id INTEGER NOT NULL,
    kind TEXT NOT NULL, json TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_by_run ON events (run_id, id);
"""

_VERSION_2: Final = """
CREATE TABLE run_sites (run_id INTEGER PRIMARY KEY, node_ids TEXT NOT NULL);
"""

_VERSION_3: Final = """
CREATE TABLE slow_lines (node_id INTEGER PRIMARY KEY, bytes_per_s INTEGER NOT NULL);
"""

JOURNAL_LAYOUT: Final = TableLayout(
    versions=((_VERSION_1,), (_VERSION_2,), (_VERSION_3,)),
    sealed={
        "sites": ("node_id",),
        "site_tags": ("node_id", "tag"),
        "slow_lines": ("node_id",),
        "tokens": ("hash",),
        "runs": ("id",),
        "run_sites": ("run_id",),
        "steps": ("run_id", "key"),
        "instructions": ("id",),
    },
    remedy=(
        "stop the server; `meadow server check --dir DIR` shows what is intact, and --repair "
        "saves it in a new journal; or restore the file from a backup"
    ),
)


class JournalDatabase(database.Database):
    """The journal's database; several transactions can be made durable together."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, JOURNAL_LAYOUT)
        self._together = self._lost = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all successful transactions of the block durable together, at its end.

        Raises:
            StoreError: the disk is full or fails; none of them is written.
        """
        with self._lock:
            self._together, self._lost = True, False
            try:
                with self._typed():
                    try:
                        yield
                        if self._db.in_transaction:
                            self._db.execute("COMMIT")
                    finally:
                        if self._db.in_transaction:
                            self._db.execute("ROLLBACK")
            finally:
                self._together = False
            self._refuse_if_lost()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Like the base class's; inside `together`, a part of the larger transaction."""
        with self._lock, nullcontext() if self._together else self.together(), self._typed():
            self._refuse_if_lost()
            if not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("SAVEPOINT part")
            try:
                yield self._db
                self._db.execute("RELEASE part")
            except BaseException:
                self._lost = not self._db.in_transaction  # the disk failed: all parts are lost
                if not self._lost:
                    self._db.execute("ROLLBACK TO part")
                    self._db.execute("RELEASE part")
                raise

    def _refuse_if_lost(self) -> None:
        if self._lost:
            raise StoreError("the journal could not be written; see the first error")
