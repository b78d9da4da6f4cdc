"""The notifier: tells each receiver of the journal's events, in their order, at least once.

The queue is the journal itself: a receiver has a place in it, the number of the last event that it has
taken, in `notify.json`. So a notice is as durable as the event that it is about, the queue is bounded as
the journal is, and a killed daemon repeats at most the notice that it was sending.

A receiver that cannot be reached holds up its own queue only. An event that it refuses again and again
is dropped, and so is one that has become too old.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from ...errors import StoreError
from ...transport.durable import write_file
from ..journal.conditions import standing
from ..journal.journal import Journal
from .notices import KINDS, Notice, notice_of
from .receivers import NoticeReceiver, NotTakenError

__all__ = ["KEPT_S_MAX", "PAUSE_S_MAX", "REFUSED_TRIES_MAX", "Notifier"]

T = TypeVar("T")
LOG = logging.getLogger("meadow.server")
FILE: Final = "notify.json"
KEPT_S_MAX: Final = 3 * 86400.0
"""An event that is older is dropped."""
REFUSED_TRIES_MAX: Final = 10
"""How often a receiver may refuse an event before it is dropped, in about a quarter of an hour."""
PAUSE_S, PAUSE_S_MAX = 1.0, 300.0
"""Between two tries; it doubles."""
READ_MAX: Final = 500
DEFECT_PAUSE_S: Final = 60.0
Record = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class _Patiently(Protocol):
    """Calls the journal off the event loop, and waits while the disk is full."""

    def __call__(self, method: Callable[[], T]) -> Awaitable[T]:
        """Return what the method returns."""


class Notifier:
    """Tells receivers of events until it is cancelled."""

    def __init__(
        self,
        journal: Journal,
        patiently: _Patiently,
        receivers: Sequence[NoticeReceiver],
        *,
        events: Collection[str],
        folder: Path,
        server: str,
        server_id: str,
        record: Record,
        clock: Callable[[], float],
    ) -> None:
        """`events` are those to tell of; `record` records an event of the server's."""
        self._journal, self._patiently = journal, patiently
        self._receivers = receivers
        self._events = frozenset(events)
        self._file = folder / FILE
        self._server, self._server_id = server, server_id
        self._record, self._clock = record, clock
        self._places: dict[str, int] = {}
        self._wakes = {each.name: asyncio.Event() for each in receivers}
        self.sent: Counter[str] = Counter({each.name: 0 for each in receivers})
        self.failed: Counter[str] = Counter({each.name: 0 for each in receivers})
        self.dropped: Counter[str] = Counter({each.name: 0 for each in receivers})
        self.waiting: dict[str, int] = {each.name: 0 for each in receivers}
        """By receiver: notices that were taken, tries that failed, notices that were dropped, all since
        the start; notices that wait, of which up to `READ_MAX` are counted."""
        self.troubles: dict[str, str] = {}
        """By receiver that does not take what it is told: why."""

    def begin(self) -> None:
        """Find each receiver's place. Call it before new events are recorded: what happened before a
        receiver was configured is not told.

        Raises:
            StoreError: `notify.json` cannot be written.
        """
        last, stored = self._journal.events.last(), self._stored()
        # a journal that was restored from a backup may end before what was told since
        self._places = {
            each.name: min(stored.get(each.name, last), last) for each in self._receivers
        }
        for (kind, about), detail in standing(self._journal.events.after(0)).items():
            if kind == "notify_failed" and about in self._places:
                self.troubles[about] = str(detail.get("reason"))
        if self._places or stored:
            self._save()

    def wake(self) -> None:
        """Look for new events."""
        for each in self._wakes.values():
            each.set()

    async def run(self) -> None:
        """Tell all receivers, each at its own pace."""
        await asyncio.gather(*(self._serve(each) for each in self._receivers))

    async def _serve(self, receiver: NoticeReceiver) -> None:
        wake = self._wakes[receiver.name]
        while True:
            wake.clear()
            try:
                for notice in await self._patiently(lambda: self._pending(receiver.name)):
                    await self._tell(receiver, notice)
                    await self._taken(receiver.name, notice.number)
            except (
                Exception
            ):  # a defect, or a damaged journal, must not end the daemon, nor go unseen
                LOG.exception("[notify] %s", receiver.name)
                await asyncio.sleep(DEFECT_PAUSE_S)
                continue
            if not self.waiting[receiver.name]:
                await wake.wait()

    def _pending(self, name: str) -> list[Notice]:
        """Return the notices after a receiver's place; skip the events that it is not told of."""
        found: list[Notice] = []
        while not found:
            place = self._places[name]
            rows = self._journal.events.of_kinds(KINDS, after=place, count_max=READ_MAX)
            found = [notice for row in rows if (notice := self._notice(row)) is not None]
            if not rows:
                break
            if not found:
                self._places[name] = rows[-1]["id"]
        self.waiting[name] = len(found)
        return found

    def _notice(self, row: sqlite3.Row) -> Notice | None:
        notice = notice_of(row, server=self._server, server_id=self._server_id)
        return notice if notice is not None and notice.event in self._events else None

    async def _tell(self, receiver: NoticeReceiver, notice: Notice) -> None:
        """Try until the receiver has taken the notice, or it is dropped."""
        refusals, pause_s = 0, PAUSE_S
        reason = "it is too old"
        while notice.at_s >= self._clock() - KEPT_S_MAX and refusals < REFUSED_TRIES_MAX:
            try:
                await receiver.take(notice)
            except NotTakenError as error:
                reason = str(error)
                refusals += error.refused
                self.failed[receiver.name] += 1
                if receiver.name not in self.troubles:
                    detail = {"about": receiver.name, "to": receiver.place, "reason": reason}
                    await self._record("notify_failed", detail)
                self.troubles[receiver.name] = reason
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                continue
            self.sent[receiver.name] += 1
            if self.troubles.pop(receiver.name, None) is not None:
                await self._record("notify_recovered", {"about": receiver.name})
            return
        self.dropped[receiver.name] += 1
        detail = {"about": receiver.name, "id": notice.id, "event": notice.event, "reason": reason}
        await self._record("notify_dropped", detail)

    async def _taken(self, name: str, number: int) -> None:
        self._places[name] = number
        self.waiting[name] = max(0, self.waiting[name] - 1)
        try:
            await asyncio.to_thread(self._save)
        except StoreError as error:  # after a restart, this notice is told again
            LOG.error("%s", error)

    # ------------------------------------------------------------------ notify.json

    def _stored(self) -> dict[str, int]:
        try:
            found = json.loads(self._file.read_text())
            return {str(name): int(number) for name, number in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _save(self) -> None:
        write_file(self._file, json.dumps(self._places).encode(), mode=0o600)
