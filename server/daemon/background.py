"""Work that goes on while something else is done: bounded, and its failures are not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["Background"]


class Background:
    """So many tasks at once. What they begin with, they begin in their order."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []

    async def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start one more, once there is room.

        Raises:
            Exception: what an earlier one has failed with; the rest goes on.
        """
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        while len(self._tasks) > self._count_max:
            await asyncio.wait(self._tasks, return_when="FIRST_COMPLETED")
        self._raise()

    async def finish(self) -> None:
        """Wait for all.

        Raises:
            Exception: what the first of them has failed with.
        """
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._raise()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    def _raise(self) -> None:
        if self._failures:
            raise self._failures[0]
