"""Refused calls in the journal: all of a few, some of a flood, so that a flood cannot fill it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping

from ...errors import StoreError
from ..journal.journal import Journal
from .allowance import Allowance
from .threads import JournalThread

__all__ = ["Denials"]

LOG = logging.getLogger("meadow.server")
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
        """Write down a refusal, unless this caller had too many lately; whether it had not.

        A disk that does not take it keeps nobody from being refused: it is in the log then.
        """
        allowed = self._allowance.take((kind, caller))
        if allowed:
            text = json.dumps(detail)
            try:
                await self._thread(self._journal.events.record, 0, kind, text, now_s=self._clock())
            except StoreError as error:
                LOG.error("%s, and so the event %s %s is not there", error, kind, text)
        return allowed
