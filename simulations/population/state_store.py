"""Where simulated clients' states are kept: in a database on disk, however many clients there are.

A row is a client's state since a version. A version ends when it is saved; the rows of the last
versions that a checkpoint may name stay, so that a run goes on from any of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ...errors import DamageError, StoreError
from ...transport.write_ahead_log import log_damage, log_of

__all__ = ["MemoryStates", "StateStore", "States"]

BUFFER_BYTES_MAX = 64 << 20
"""States that wait in memory to be written together."""
ROW_BYTES = 128
"""The memory of a state beyond its own bytes, roughly, in bytes."""
VERSIONS_KEPT = 3
"""The one that is being saved, and those of the two checkpoints before it."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS states (
    node_id INTEGER NOT NULL, version INTEGER NOT NULL, state BLOB NOT NULL,
    PRIMARY KEY (node_id, version));
CREATE INDEX IF NOT EXISTS states_by_version ON states (version);
"""


class States(Protocol):
    """Keeps bytes by node id."""

    def get(self, node_id: int) -> bytes | None: ...
    def put(self, node_id: int, state: bytes) -> None: ...


class MemoryStates:
    """The states of a few clients, for as long as these are at work."""

    def __init__(self) -> None:
        self._given: Mapping[int, bytes] = {}
        self.changed: dict[int, bytes] = {}
        """What was put since `begin`."""

    def begin(self, given: Mapping[int, bytes]) -> None:
        """Forget everything, and take these."""
        self._given, self.changed = given, {}

    def get(self, node_id: int) -> bytes | None:
        return self.changed.get(node_id, self._given.get(node_id))

    def put(self, node_id: int, state: bytes) -> None:
        self.changed[node_id] = state


class StateStore:
    """States in an SQLite file that is made when the first of them is kept.

    Guarantees: `save` costs as much as has changed since the last one, and what it returns is
        durable; whatever dies at whatever moment, `load` finds the states of the last saves.
        Memory is bounded by `buffer_bytes_max`.
    """

    def __init__(self, path: Path, *, buffer_bytes_max: int = BUFFER_BYTES_MAX) -> None:
        self._path = path
        self._buffer_bytes_max = buffer_bytes_max
        self._db: sqlite3.Connection | None = None
        self._buffer: dict[int, bytes] = {}
        self._buffer_bytes = 0
        self._version = 1
        """The one that is being made."""
        self._fresh = True
        """Whether a file that is there belongs to an attempt that left no checkpoint."""

    def get(self, node_id: int) -> bytes | None:
        """Return a client's state, None if it has none.

        Raises:
            StoreError: the file is damaged.
        """
        if node_id in self._buffer:
            return self._buffer[node_id]
        if self._db is None:
            return None
        with self._typed():
            row = self._db.execute(
                "SELECT state FROM states WHERE node_id = ? ORDER BY version DESC LIMIT 1",
                (node_id,),
            ).fetchone()
        return None if row is None else bytes(row[0])

    def put(self, node_id: int, state: bytes) -> None:
        """Keep a client's state; it is durable after the next `save`.

        Raises:
            StoreError: the disk is full or fails.
        """
        before = self._buffer.get(node_id)
        self._buffer_bytes += len(state) - len(before) if before is not None else _size(state)
        self._buffer[node_id] = state
        if self._buffer_bytes > self._buffer_bytes_max:
            with self._transaction(durable=False) as rows:
                self._write(rows)
            self._forget_buffer()

    def save(self) -> dict[str, str]:
        """Make all states durable and return what `load` needs; empty if there are none.

        Raises:
            StoreError: the disk is full or fails; the versions before are intact.
        """
        if self._db is None and not self._buffer:
            return {}
        with self._transaction(durable=True) as rows:
            self._write(rows)
            rows.execute(
                "DELETE FROM states WHERE version < ?1"
                " AND node_id IN (SELECT node_id FROM states WHERE version = ?1)",
                (self._version - VERSIONS_KEPT + 1,),
            )
        self._forget_buffer()
        saved = {"version": str(self._version)}
        self._version += 1
        return saved

    def load(self, saved: Mapping[str, str]) -> None:
        """Go back to what was saved; what came later is dropped.

        Raises:
            StoreError: it is not there any more.
        """
        self._forget_buffer()
        version = int(saved.get("version", 0))
        self._fresh = version == 0
        if not self._path.exists():
            if version:
                raise StoreError(f"{self._path} is missing: the clients' states were kept in it")
            return
        with self._transaction(durable=True) as rows:
            rows.execute("DELETE FROM states WHERE version > ?", (version,))
        self._version = version + 1

    def close(self) -> None:
        """Close the file; what was saved stays."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _write(self, rows: sqlite3.Connection) -> None:
        rows.executemany(
            "INSERT OR REPLACE INTO states VALUES (?, ?, ?)",
            ((node_id, self._version, state) for node_id, state in sorted(self._buffer.items())),
        )

    def _forget_buffer(self) -> None:
        self._buffer, self._buffer_bytes = {}, 0

    @contextmanager
    def _transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        with self._typed():
            rows = self._db or self._opened()
            # In WAL mode a durable commit makes those before it durable too.
            rows.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            rows.execute("BEGIN IMMEDIATE")
            try:
                yield rows
                rows.execute("COMMIT")
            except BaseException:
                if rows.in_transaction:
                    rows.execute("ROLLBACK")
                raise

    def _opened(self) -> sqlite3.Connection:
        if not self._fresh and (what := log_damage(log_of(self._path), synced=False)) is not None:
            raise DamageError(f"{log_of(self._path)} is damaged: its {what}; begin the run anew")
        self._db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript(_SCHEMA)
        if self._fresh:
            self._db.execute("DELETE FROM states")
            self._fresh = False
        return self._db

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error


def _size(state: bytes) -> int:
    return len(state) + ROW_BYTES
