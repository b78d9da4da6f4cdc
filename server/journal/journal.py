"""The journal: the server's durable state.

Tensors are files in the spool; the journal records which of them are valid. Its methods block, so
call them off the event loop.
"""

from __future__ import annotations

import json as json_module
import logging
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ...machine.json_log import fields_of
from ...transport.database import Salvage
from .conditions import CONDITIONS
from .database import JournalDatabase
from .run_table import RunTable
from .site_table import SiteTable
from .step_table import StepTable

__all__ = ["EVENTS_PER_RUN_MAX", "EventTable", "Journal"]


class Journal:
    """The tables of the server's durable state."""

    def __init__(self, path: Path) -> None:
        """Open the file, or create it.

        Raises:
            StoreError: it is not a journal, is damaged or of a newer version, or cannot be opened.
        """
        self._db = JournalDatabase(path)
        self.sites = SiteTable(self._db)
        self.runs = RunTable(self._db)
        self.steps = StepTable(self._db)
        self.events = EventTable(self._db)

    def together(self) -> AbstractContextManager[None]:
        """See `JournalDatabase.together`."""
        return self._db.together()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as one transaction: all of its writes take effect, or none."""
        with self._db.transaction():
            yield

    def check(self) -> None:
        """Check all tables except the steps, whose damage ends only their own run.

        Raises:
            DamageError: the journal is damaged.
        """
        self._db.check(besides=("steps", "instructions"))

    def problems(self) -> list[str]:
        """See `JournalDatabase.problems`."""
        return self._db.problems()

    def take_over(self, table: str, saved: Salvage, *, numbers: Iterable[int] = ()) -> None:
        """Insert the rows that were saved from another journal's table.

        The ids of its lost rows, and `numbers`, are not assigned again.
        """
        self._db.take_over(table, saved.rows)
        taken = max([0, *numbers, *(int(name) for name in saved.lost if name.isdecimal())])
        with self._db.transaction() as db:
            db.execute(
                "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", (taken, table)
            )
            db.execute(
                "INSERT INTO sqlite_sequence SELECT ?, ? WHERE NOT EXISTS"
                " (SELECT 1 FROM sqlite_sequence WHERE name = ?)",
                (table, taken, table),
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()


LOG = logging.getLogger("meadow.server")

EVENTS_PER_RUN_MAX = 20_000


TROUBLE = (
    "denied",
    "died",
    "damaged",
    "dropped",
    "failed",
    "refused",
    "waits",
    "warning",
    *CONDITIONS,
)
TEXT_CHARS_MAX = 400


class EventTable:
    """Events in their order; beyond `EVENTS_PER_RUN_MAX`, the oldest of a run are dropped."""

    def __init__(self, db: JournalDatabase) -> None:
        self._db = db

    def record(self, run_id: int, kind: str, json: str, *, now_s: float, round: int = 0) -> int:
        """Append an event (run 0 is the server itself) and return its number."""
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
        _log(run_id, kind, json, round)
        return cursor.lastrowid or 0

    def of_kinds(self, kinds: Collection[str], *, after: int, count_max: int) -> list[sqlite3.Row]:
        """Return the first events of these kinds that came after number `after`, of all runs."""
        marks = ",".join("?" * len(kinds))
        return self._db.rows(
            f"SELECT * FROM events WHERE id > ? AND kind IN ({marks}) ORDER BY id LIMIT ?",
            (after, *kinds, count_max),
        )

    def forget(self, run_id: int) -> None:
        """Drop a run's events but those of its status."""
        with self._db.transaction() as db:
            db.execute("DELETE FROM events WHERE run_id = ? AND kind != 'status'", (run_id,))

    def last(self) -> int:
        """Return the number of the last event; 0 before the first."""
        rows = self._db.rows("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
        return int(rows[0]["seq"]) if rows else 0

    def after(self, run_id: int, *, after: int = 0) -> list[sqlite3.Row]:
        """Return a run's events (id, at_s, kind, json) that came after number `after`."""
        return self._db.rows(
            "SELECT * FROM events WHERE run_id = ? AND id > ? ORDER BY id", (run_id, after)
        )


def _log(run_id: int, kind: str, json: str, round: int) -> None:
    """Write an event to the log, as one line with its level, run, round and details."""
    level = logging.WARNING if any(word in kind for word in TROUBLE) else logging.INFO
    if not LOG.isEnabledFor(level):
        return
    detail = json_module.loads(json)
    detail = detail if isinstance(detail, dict) else {}
    number = detail.pop("round", None) or round
    about = {"run": run_id} if run_id else {}
    about |= {"round": number} if number and run_id else {}
    fields = fields_of(kind, **about, detail=dict(detail))
    where = "".join(
        [f"run {run_id}, " if run_id else "", f"round {number}, " if number and run_id else ""]
    )
    if detail.get("status") == "failed":
        level = logging.WARNING
    words = [f"{key} {_short(value)}" for key, value in detail.items() if _is_shown(value)]
    text = f"{where.removesuffix(', ')}{': ' if where else ''}{kind.replace('_', ' ')}"
    text = f"{text}: {', '.join(words)}" if words else text
    shown = "".join(mark if mark.isprintable() else "?" for mark in text[:TEXT_CHARS_MAX])
    LOG.log(level, "%s", shown, extra=fields)


def _is_shown(value: object) -> bool:
    return value not in ("", None) and isinstance(value, str | int | float | bool)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
