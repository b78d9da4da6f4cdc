"""The ledger of a run's releases: privacy.sqlite in its folder, written before each release."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..errors import ConfigError
from ..privacy.dp.events import Event
from ..transport.database import Database, Layout

__all__ = ["RELEASES_LAYOUT", "RunLedger"]

_VERSION_1: Final = """
CREATE TABLE IF NOT EXISTS releases (
    number INTEGER PRIMARY KEY,
    round INTEGER NOT NULL,          -- twice, if it was released again after a crash
    event TEXT NOT NULL
);
"""

RELEASES_LAYOUT: Final = Layout(
    versions=((_VERSION_1,),),
    sealed={"releases": ("number",)},
    remedy="restore it from a backup that has all releases, or end the run",
)


class RunLedger:
    """What a run released; None for the path keeps it in memory.

    Guarantees: `write` is durable on return; without `sync` it survives the process's death, but
        not the machine's.
    Raises:
        StoreError: the file is damaged, or the disk is full.
    """

    def __init__(self, path: Path | None, *, sync: bool = True) -> None:
        self._path = path
        self._db = Database(path, RELEASES_LAYOUT, sync=sync)
        self._db.check()
        ((self._count, self._rounds),) = self._db.rows(
            "SELECT count(*), coalesce(max(round), 0) FROM releases"
        )

    def write(self, round_number: int, event: Event) -> None:
        """Add a release that is about to be made."""
        with self._db.transaction() as rows:
            rows.execute(
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
        others = self._db.rows(
            "SELECT event, round FROM releases WHERE event <> ? LIMIT 1", (repr(event),)
        )
        if others:
            raise ConfigError(
                f"{self._path} has a release of round {others[0][1]} by another mechanism, "
                f"{others[0][0]}; this run would go on with {event!r}: continue with the "
                "configuration that it began with, or start anew"
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()
