"""The journal: what the server knows and must not forget.

Tensors are files in the spool; the journal says which of them count. Its methods block: call them
off the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ...transport.database import Salvage
from .database import Database
from .event_table import EventTable
from .run_table import RunTable
from .site_table import SiteTable
from .step_table import StepTable

__all__ = ["Journal"]


class Journal:
    """All of the server's durable facts, by kind."""

    def __init__(self, path: Path) -> None:
        """Open the file, or lay it out.

        Raises:
            StoreError: it is no journal, is damaged or of a newer version, or cannot be opened.
        """
        self._db = Database(path)
        self.sites = SiteTable(self._db)
        self.runs = RunTable(self._db)
        self.steps = StepTable(self._db)
        self.events = EventTable(self._db)

    def together(self) -> AbstractContextManager[None]:
        """As `Database.together`."""
        return self._db.together()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make one of what is written in the block: all of it is there afterwards, or nothing."""
        with self._db.transaction():
            yield

    def check(self) -> None:
        """As `Database.check`; what is wrong with a run's steps is for that run to find.

        Raises:
            DamageError: the journal is damaged.
        """
        self._db.check(besides=("steps", "instructions"))

    def problems(self) -> list[str]:
        """As `Database.problems`."""
        return self._db.problems()

    def take_over(self, table: str, saved: Salvage, *, numbers: Iterable[int] = ()) -> None:
        """Write what was saved of another journal's table. The numbers of what is lost, and these
        `numbers`, are not given again."""
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
        """Close the file; the last committed transaction stays."""
        self._db.close()
