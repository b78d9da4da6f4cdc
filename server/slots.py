"""A bound on how many streams hold chunks in memory, however many there are.

A stream takes a slot for one step (the next chunk in, or out) and gives it back. A peer that is
slow does not keep it: after a moment its step goes on without a slot, and what it holds is at most
the chunk that it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["Slots"]

PATIENCE_S = 0.5
T = TypeVar("T")


class Slots:
    """So many steps at once."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    async def step(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Begin `work` when there is a slot, and return what it gives."""
        await self._free.acquire()
        slot = [self._free]

        def give_back() -> None:
            if slot:
                slot.pop().release()

        patience = asyncio.get_running_loop().call_later(PATIENCE_S, give_back)
        try:
            return await work()
        finally:
            patience.cancel()
            give_back()
