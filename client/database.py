"""The agent's one database: what it has answered, what it keeps, what its owner has allowed."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StoreError

__all__ = ["Database"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY,         -- 64 unsigned bits: more than SQLite's integers hold
    state BLOB NOT NULL,
    used INTEGER NOT NULL            -- counts up; the smallest was used longest ago
);
CREATE TABLE IF NOT EXISTS replies (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    instruction_id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    envelope BLOB NOT NULL,
    acknowledged INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS participations (
    instruction_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    round TEXT NOT NULL,
    app TEXT NOT NULL,
    day TEXT NOT NULL                -- UTC, YYYY-MM-DD
);
CREATE INDEX IF NOT EXISTS participations_day ON participations (day);
CREATE TABLE IF NOT EXISTS spent (
    content TEXT PRIMARY KEY,        -- digest of an instruction: its id alone may come again
    run_id TEXT NOT NULL,
    app TEXT NOT NULL,
    cost REAL,                       -- by the round's noise; NULL if it has none
    gaussian INTEGER NOT NULL,       -- whether a closed form gives the epsilon of the cost
    record_multiplier REAL,          -- of DP-SGD's steps; NULL if there are none
    record_rate REAL,
    record_steps INTEGER
);
CREATE TABLE IF NOT EXISTS refusals (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    instruction_id TEXT NOT NULL,
    app TEXT NOT NULL,
    at_s REAL NOT NULL,
    reason TEXT NOT NULL
);
"""


class Database:
    """An SQLite file that is durable at every commit; may be used from any thread.

    Raises:
        StoreError: the file is damaged, not a database, or the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._typed():
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_SCHEMA)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block in one transaction: all of it is durable afterwards, or none."""
        with self._lock, self._typed():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise

    def rows(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Return what a query finds."""
        with self._lock, self._typed():
            return self._connection.execute(query, values).fetchall()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error
