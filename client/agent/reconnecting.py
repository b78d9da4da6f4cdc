"""Reports to the owner why a connection fails: each cause once."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime

from ...errors import MeadowError, UnreachableError
from ...transport.reach import why_not_reached
from ..owner.identity_folder import ClientIdentity
from .events import Event, Report

__all__ = ["Outage"]

LOOKED_AGAIN = 16
"""After so many attempts that failed alike, the cause is examined again."""


class Outage:
    """One period without a connection; attempts that fail for the same cause are one line."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._seen = ""
        self._alike = 0
        self._told = ""

    def end(self) -> None:
        """Note that there is a connection."""
        self._seen = self._told = ""

    async def tell(
        self, error: MeadowError, identity: ClientIdentity, *, welcomed: bool, now_s: float
    ) -> None:
        """Report why there is no connection, unless that was reported already.

        An examination of the cause opens a connection, so it is done only if no Meadow server
        answered, and not for each attempt.
        """
        seen = _cause(str(error))
        self._alike = self._alike + 1 if seen == self._seen else 0
        self._seen = seen
        if self._alike % LOOKED_AGAIN:
            return
        text = str(error)
        if isinstance(error, UnreachableError) and not welcomed:
            now = datetime.fromtimestamp(now_s, UTC)
            found = await asyncio.to_thread(
                why_not_reached, identity.fleet_address, identity.ca_pem, now=now
            )
            text = found or text
        if _cause(text) != self._told:
            self._report(Event(kind="disconnected", text=f"{text}; trying again"))
        self._told = _cause(text)


def _cause(text: str) -> str:
    """Return the text without ports, times and counts, which identifies the cause."""
    return re.sub(r"[0-9]+", "0", text)
