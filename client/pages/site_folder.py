"""A client's folder as its owner's pages see it; its agent may run or not."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final, NamedTuple

from ...apps.folder import content_hash
from ..owner import gate
from ..owner.owner import Owner, Signature, signature_of
from ..owner.sent_log import SentRow, sent_rows
from ..tools.status import ClientSpending, ClientStatus, spending_of, status_of

__all__ = ["LogChoice", "SiteFolder", "csv_lines", "json_lines"]

EXPORT_ROWS: Final = 1000
FORMULA_MARKS: Final = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is a formula to a spreadsheet."""


class LogChoice(NamedTuple):
    """Which rows of the log: those of one run, and only refusals and failures, or none of them."""

    run_id: int | None = None
    refused: bool | None = None


class SiteFolder:
    """Reads one client's folder, and pauses or resumes its site."""

    def __init__(self, directory: Path, *, clock: Callable[[], float]) -> None:
        self.directory = directory
        self._clock = clock
        self._owner = Owner(directory, content_hash)
        self._lock = threading.Lock()
        self._spending: tuple[Signature, ClientSpending] | None = None

    def status(self) -> ClientStatus:
        """As `status_of`, now."""
        with self._lock:
            return status_of(self.directory, now_s=self._clock(), owner=self._owner)

    def spending(self) -> ClientSpending:
        """As `spending_of`; computed when a file of it has changed."""
        files = ("agent.sqlite", "agent.sqlite-wal", "client.toml", "identity/ledger")
        with self._lock:
            signature = signature_of(*(self.directory / file for file in files))
            if self._spending is None or self._spending[0] != signature:
                self._spending = signature, spending_of(self.directory, self._owner)
            return self._spending[1]

    def rows(self, selection: LogChoice, *, last: int, before: int | None = None) -> list[SentRow]:
        """As `sent_rows`, the newest first."""
        run_id, refused = selection
        found = sent_rows(self.directory, last=last, run_id=run_id, before=before, refused=refused)
        return found[::-1]

    def all_rows(self, selection: LogChoice) -> Iterator[SentRow]:
        """Yield all rows likewise, a part at a time."""
        before: int | None = None
        while rows := self.rows(selection, last=EXPORT_ROWS, before=before):
            yield from rows
            before = rows[-1].number

    @property
    def paused(self) -> bool:
        """Whether the owner has paused the site."""
        return gate.is_paused(self.directory)

    def pause(self) -> None:
        """As `gate.pause`."""
        gate.pause(self.directory)

    def resume(self) -> None:
        """As `gate.resume`."""
        gate.resume(self.directory)


def json_lines(rows: Iterable[SentRow]) -> Iterator[str]:
    """Yield rows as JSON, a line each."""
    for row in rows:
        yield json.dumps(asdict(row)) + "\n"


def csv_lines(rows: Iterable[SentRow]) -> Iterator[str]:
    """Yield rows as CSV with a heading; a text that a spreadsheet would compute has a quote before it."""
    names = [field.name for field in fields(SentRow)]
    yield _csv_line(names)
    for row in rows:
        yield _csv_line([_cell(getattr(row, name)) for name in names])


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(FORMULA_MARKS):
        return f"'{value}"
    return "" if value is None else value


def _csv_line(cells: list[object] | list[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()
