"""Which address is tried next, and why a connection fails: each cause is reported once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime

from ...errors import MeadowError, UnreachableError
from ...transport.reach import why_not_reached
from .events import Event, Report
from .uplink import retry_delay_s

__all__ = ["Outage", "Routes"]

LOOKED_AGAIN = 16
"""After so many attempts that failed alike, the cause is examined again."""


class Routes:
    """The server's addresses: the one that answers is kept, and after a failure it is the next
    one's turn."""

    def __init__(self) -> None:
        self._addresses: tuple[str, ...] = ()
        self.present = ""
        """The address to connect to."""

    def update(self, addresses: Sequence[str]) -> None:
        """Set the addresses, at least one; the present one stays if it is among them."""
        self._addresses = tuple(addresses)
        if self.present not in self._addresses:
            self.present = self._addresses[0]

    def turn(self) -> None:
        """Note that the present address failed."""
        at = self._addresses.index(self.present)
        self.present = self._addresses[(at + 1) % len(self._addresses)]

    def delay_s(self, attempt: int) -> float:
        """Return the delay before an attempt: each address is tried as often as a single one."""
        count = len(self._addresses)
        return retry_delay_s(attempt // count) / count


class Outage:
    """One period without a connection to an address; attempts that fail for the same cause are one
    line."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._seen = ""
        self._alike = 0
        self._told = ""

    async def tell(
        self, error: MeadowError, address: str, ca_pem: bytes, *, welcomed: bool, now_s: float
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
            found = await asyncio.to_thread(why_not_reached, address, ca_pem, now=now)
            text = found or text
        if _cause(text) != self._told:
            self._report(Event(kind="disconnected", text=f"{text}; trying again"))
        self._told = _cause(text)


def _cause(text: str) -> str:
    """Return the text without ports, times and counts, which identifies the cause."""
    return re.sub(r"[0-9]+", "0", text)
