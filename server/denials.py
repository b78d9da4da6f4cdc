"""Refused calls in the journal: all of a few, some of a flood, so that a flood cannot fill it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from .journal import Journal
from .threads import JournalThread

__all__ = ["Denials"]

BURST = 10
"""So many refusals of one caller are recorded at once, and then one a second."""
CALLERS_MAX = 10_000


class Denials:
    """Records who was refused, and why."""

    def __init__(
        self, journal: Journal, thread: JournalThread, *, clock: Callable[[], float]
    ) -> None:
        self._journal = journal
        self._thread = thread
        self._clock = clock
        self._spent: dict[tuple[str, str], tuple[float, float]] = {}

    async def record(
        self, detail: Mapping[str, str | None], *, caller: str = "", kind: str = "access_denied"
    ) -> bool:
        """Write down a refusal, unless this caller had too many lately; whether it was."""
        now_s = self._clock()
        before, at_s = self._spent.pop((kind, caller), (0.0, now_s))
        spent = max(0.0, before - max(0.0, now_s - at_s))
        allowed = spent + 1 <= BURST
        self._spent[kind, caller] = (spent + allowed, now_s)
        if len(self._spent) > CALLERS_MAX:
            del self._spent[next(iter(self._spent))]
        if allowed:
            text = json.dumps(detail)
            await self._thread(self._journal.events.record, 0, kind, text, now_s=now_s)
        return allowed
