"""Records refused calls in the journal and the audit log, at a limited rate, so that a flood cannot
fill them."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping

from ...errors import StoreError
from ..journal.journal import Journal
from .threads import JournalThread

__all__ = ["Allowance", "Denials"]

LOG = logging.getLogger("meadow.server")
BURST = 10
"""Refusals of one caller that are recorded at once; after that, one per second."""


class Denials:
    """Records which caller was refused, and why."""

    def __init__(
        self,
        journal: Journal,
        thread: JournalThread,
        audit: Callable[..., Awaitable[None]],
        *,
        clock: Callable[[], float],
    ) -> None:
        """`audit` is `AuditTrail.refused`."""
        self._journal = journal
        self._thread = thread
        self._audit = audit
        self._clock = clock
        self._allowance = Allowance(burst=BURST, every_s=1.0, clock=clock)

    async def record(
        self,
        detail: Mapping[str, str | None],
        *,
        caller: str = "",
        kind: str = "access_denied",
        audited: Mapping[str, str] | None = None,
    ) -> bool:
        """Record a refusal unless the caller is over its rate; return whether it was recorded.

        `audited` is who was refused which call, for the audit log, which has a rate of its own. If
        the disk fails, the refusal still stands and is written to the log.
        """
        if audited is not None:
            await self._audit(what={"reason": detail.get("reason") or ""}, **audited)
        allowed = self._allowance.take((kind, caller))
        if allowed:
            text = json.dumps(detail)
            try:
                await self._thread(self._journal.events.record, 0, kind, text, now_s=self._clock())
            except StoreError as error:
                LOG.error("%s; the event %s %s is not in the journal", error, kind, text)
        return allowed


CALLERS_MAX = 10_000


class Allowance:
    """A rate limit per caller: `burst` calls at once, and one more every `every_s` seconds."""

    def __init__(self, *, burst: int, every_s: float, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._every_s = every_s
        self._clock = clock
        self._spent: dict[Hashable, tuple[float, float]] = {}

    def take(self, caller: Hashable) -> bool:
        """Return whether a caller is within its limit, and count the call if so."""
        now_s = self._clock()
        before, at_s = self._spent.pop(caller, (0.0, now_s))
        spent = max(0.0, before - max(0.0, now_s - at_s) / self._every_s)
        allowed = spent + 1 <= self._burst
        self._spent[caller] = (spent + allowed, now_s)
        if len(self._spent) > CALLERS_MAX:
            del self._spent[next(iter(self._spent))]
        return allowed
