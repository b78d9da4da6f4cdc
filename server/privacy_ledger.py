"""The ledger of a run's releases: privacy.sqlite in its folder, written before each release."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ConfigError, StoreError
from ..privacy.dp.events import Event

__all__ = ["RunLedger"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS releases (
    number INTEGER PRIMARY KEY,
    round INTEGER NOT NULL,          -- twice, if it was released again after a crash
    event TEXT NOT NULL
);
"""


class RunLedger:
    """What a run released; None for the path keeps it in memory.

    Guarantees: `write` is durable on return; without `sync` it survives the process's death, but
        not the machine's.
    Raises:
        StoreError: the file is damaged, or the disk is full.
    """

    def __init__(self, path: Path | None, *, sync: bool = True) -> None:
        self._path = path
        with self._typed():
            self._connection = sqlite3.connect(path or ":memory:", isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
            self._connection.executescript(_SCHEMA)
            self._count, self._rounds = self._connection.execute(
                "SELECT count(*), coalesce(max(round), 0) FROM releases"
            ).fetchone()

    def write(self, round_number: int, event: Event) -> None:
        """Add a release that is about to be made."""
        with self._typed():
            self._connection.execute(
                "INSERT INTO releases (round, event) VALUES (?, ?)", (round_number, repr(event))
            )
        self._count += 1
        self._rounds = max(self._rounds, round_number)

    def count(self) -> int:
        """Return how many releases there were, repeated ones included."""
        return int(self._count)

    def rounds(self) -> int:
        """Return of how many rounds: releases beyond them were of rounds that had been released."""
        return int(self._rounds)

    def require(self, event: Event) -> None:
        """Check that all releases so far were of this event: only then they add up as one plan.

        Raises:
            ConfigError: one was not.
        """
        with self._typed():
            found = self._connection.execute(
                "SELECT event, round FROM releases WHERE event <> ? LIMIT 1", (repr(event),)
            ).fetchone()
        if found is not None:
            raise ConfigError(
                f"{self._path} has a release of round {found[1]} by another mechanism, {found[0]}; "
                f"this run would go on with {event!r}: continue with the configuration that it "
                "began with, or start anew"
            )

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error
