"""One thread for the journal, so that a slow disk never stalls the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["JournalThread"]

P = ParamSpec("P")
T = TypeVar("T")


class JournalThread:
    """Runs journal calls one after another, off the event loop: `await thread(method, ...)`."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="journal")

    async def __call__(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: method(*args, **kwargs))

    def close(self) -> None:
        """Finish what was begun and stop."""
        self._pool.shutdown()
