"""The ledger of a run's releases: privacy.sqlite in its folder, written before each release."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..errors import ConfigError
from ..privacy.dp.accounting.events import Event
from ..transport.database import Database, TableLayout

__all__ = ["RELEASES_LAYOUT", "RunLedger"]

_VERSION_1: Final = """
CREATE TABLE IF NOT EXISTS releases (
    number INTEGER PRIMARY KEY,
    round INTEGER NOT NULL,          -- twice, if it was released again after a crash
    event TEXT NOT NULL
);
"""

_VERSION_2: Final = """
CREATE TABLE IF NOT EXISTS draws (
    round INTEGER PRIMARY KEY,       -- drawn by coins once, however often it is released
    clients TEXT NOT NULL            -- a JSON list of ids
);
"""

RELEASES_LAYOUT: Final = TableLayout(
    versions=((_VERSION_1,), (_VERSION_2,)),
    sealed={"releases": ("number",), "draws": ("round",)},
    remedy="restore it from a backup that has all releases, or end the run",
)


class RunLedger:
    """The releases of a run; with None as the path, kept in memory.

    Guarantees: `write` is durable on return; without `sync` it survives the process's death, but
        not the machine's.
    Raises:
        StoreError: the file is damaged, or the disk is full.
    """

    def __init__(self, path: Path | None, *, sync: bool = True) -> None:
        self._path = path
        self._db = Database(path, RELEASES_LAYOUT, sync=sync)
        self._db.check()
        self._times = Counter(
            int(row["round"]) for row in self._db.rows("SELECT round FROM releases")
        )
        self._count, self._repeated = self._times.total(), _repeated(self._times)

    def write(self, round_number: int, event: Event) -> None:
        """Record a release; call this before it is made."""
        with self._db.transaction() as rows:
            rows.execute(
                "INSERT INTO releases (round, event) VALUES (?, ?)", (round_number, repr(event))
            )
        self._repeated = self.repeated(round_number)
        self._times[round_number] += 1
        self._count += 1

    def count(self) -> int:
        """Return the number of releases, including repeated ones."""
        return self._count

    def repeated(self, besides: int | None = None) -> tuple[int, ...]:
        """Return the number of releases of each round that has more than one.

        `besides` is a round whose next release is counted too.
        """
        if besides is None or besides not in self._times:
            return self._repeated
        return _repeated(self._times + Counter([besides]))

    def drawn(self, round_number: int) -> list[int] | None:
        """Return the clients sampled for a round, None if no sample was recorded."""
        rows = self._db.sealed("draws", "WHERE round = ?", (round_number,))
        return [int(client) for client in json.loads(rows[0]["clients"])] if rows else None

    def write_draw(self, round_number: int, clients: Sequence[int]) -> None:
        """Record the sample of a round, before its clients get instructions."""
        with self._db.transaction() as rows:
            rows.execute(
                "INSERT INTO draws (round, clients) VALUES (?, ?)",
                (round_number, json.dumps(list(clients))),
            )

    def require(self, event: Event) -> None:
        """Check that all releases so far are of this event, as the plan's accounting assumes.

        Raises:
            ConfigError: a release is of another event.
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


def _repeated(times: Counter[int]) -> tuple[int, ...]:
    return tuple(sorted(count for count in times.values() if count > 1))
