"""Bounds the number of streams that hold chunks in memory.

A stream holds a slot for one step (the next chunk in, or out). A slow peer does not keep its slot:
after `PATIENCE_S`, its step continues as one of a bounded number of slow steps. Beyond that bound,
the oldest step of the client with the most slow steps is ended; its agent retries with smaller
chunks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from ...errors import UnreachableError

__all__ = ["SLOW_STEPS_MAX", "STEP_S_MAX", "Slots", "Waits"]

PATIENCE_S = 0.5
SLOW_STEPS_MAX = 128
"""Bound of the slow steps; each holds at most one chunk."""
STEP_S_MAX = 60.0
T = TypeVar("T")


class Waits:
    """Bounds the number of waits, of all callers and of each caller.

    Beyond a bound, the oldest wait of the caller with the most waits is ended.
    """

    def __init__(self, count_max: int, each_max: int | None = None) -> None:
        self._count_max = count_max
        self._each_max = each_max or count_max
        self._whose: dict[asyncio.Timeout, Hashable] = {}
        self._counts: Counter[Hashable] = Counter()

    def __contains__(self, whose: Hashable) -> bool:
        """Return whether a caller has a wait."""
        return whose in self._counts

    @property
    def is_full(self) -> bool:
        """Whether one more wait ends another."""
        return len(self._whose) >= self._count_max

    @property
    def is_shared(self) -> bool:
        """Whether one more wait ends another, although no caller has more than one."""
        return self.is_full and len(self._counts) == len(self._whose)

    def end_within(self, wait_s: float) -> None:
        """End the waits after so many seconds from now, those that do not end before."""
        at_s = asyncio.get_running_loop().time() + wait_s
        for limit in self._whose:
            until_s = limit.when()
            if until_s is None or until_s > at_s:
                limit.reschedule(at_s)

    def add(self, limit: asyncio.Timeout, whose: Hashable) -> None:
        """Register a caller's wait; it can be ended by rescheduling `limit`."""
        self._whose[limit] = whose
        self._counts[whose] += 1
        greediest = whose
        if len(self._whose) > self._count_max:
            greediest = max(self._counts, key=lambda each: self._counts[each])
        elif self._counts[whose] <= self._each_max:
            return
        oldest = next(each for each, name in self._whose.items() if name == greediest)
        self.remove(oldest)
        oldest.reschedule(asyncio.get_running_loop().time())

    def remove(self, limit: asyncio.Timeout) -> None:
        """Remove a wait that is over."""
        if limit in self._whose:
            whose = self._whose.pop(limit)
            self._counts[whose] -= 1
            if not self._counts[whose]:
                del self._counts[whose]


class Slots:
    """Allows `count` steps at once, and a bounded number of slow ones in addition."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._slow = Waits(SLOW_STEPS_MAX)

    async def step(self, caller: int, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` as soon as a slot is free, and return its result.

        Raises:
            UnreachableError: it took too long, or there are too many slow steps.
        """
        await self._free.acquire()
        slot = [self._free]

        def give_back() -> None:
            if slot:
                slot.pop().release()

        def go_on_slowly() -> None:
            give_back()
            limit.reschedule(loop.time() + STEP_S_MAX)
            self._slow.add(limit, caller)

        loop = asyncio.get_running_loop()
        patience = loop.call_later(PATIENCE_S, go_on_slowly)
        try:
            async with asyncio.timeout(None) as limit:
                return await work()
        except TimeoutError:
            raise UnreachableError("a chunk took too long; go on with smaller ones") from None
        finally:
            patience.cancel()
            self._slow.remove(limit)
            give_back()
