"""A bound on how many streams hold chunks in memory, however many there are.

A stream takes a slot for one step (the next chunk in, or out) and gives it back. A peer that is
slow does not keep it: after a moment its step goes on without a slot, among a bounded number of slow ones.
Where there are more of those, the client that has most of them loses its oldest: it comes back
with smaller chunks.
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
"""Each holds a chunk at most."""
STEP_S_MAX = 60.0
T = TypeVar("T")


class Waits:
    """A bounded number of waits, and of each one's: beyond them, whoever has most of them loses the
    oldest."""

    def __init__(self, count_max: int, each_max: int | None = None) -> None:
        self._count_max = count_max
        self._each_max = each_max or count_max
        self._whose: dict[asyncio.Timeout, Hashable] = {}
        self._counts: Counter[Hashable] = Counter()

    def add(self, limit: asyncio.Timeout, whose: Hashable) -> None:
        """Begin a wait, which `limit` can end."""
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
        """A wait is over."""
        if limit in self._whose:
            whose = self._whose.pop(limit)
            self._counts[whose] -= 1
            if not self._counts[whose]:
                del self._counts[whose]


class Slots:
    """So many steps at once, and a bounded number of slow ones beside them."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._slow = Waits(SLOW_STEPS_MAX)

    async def step(self, caller: int, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Begin `work` when there is a slot, and return what it gives.

        Raises:
            UnreachableError: it took too long, or too many others are as slow.
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
