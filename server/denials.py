"""Refused calls in the journal: all of a few, some of a flood, so that a flood cannot fill it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from .allowance import Allowance
from .journal import Journal
from .threads import JournalThread

__all__ = ["Denials"]

BURST = 10
"""So many refusals of one caller are recorded at once, and then one a second."""


class Denials:
    """Records who was refused, and why."""

    def __init__(
        self, journal: Journal, thread: JournalThread, *, clock: Callable[[], float]
    ) -> None:
        self._journal = journal
        self._thread = thread
        self._clock = clock
        self._allowance = Allowance(burst=BURST, every_s=1.0, clock=clock)

    async def record(
        self, detail: Mapping[str, str | None], *, caller: str = "", kind: str = "access_denied"
    ) -> bool:
        """Write down a refusal, unless this caller had too many lately; whether it was."""
        allowed = self._allowance.take((kind, caller))
        if allowed:
            text = json.dumps(detail)
            await self._thread(self._journal.events.record, 0, kind, text, now_s=self._clock())
        return allowed
