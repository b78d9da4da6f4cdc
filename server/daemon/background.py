"""A bounded number of background tasks; the caller gets their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["Background"]


class Background:
    """At most `count_max` tasks at once, started in the order of the calls of `begin`."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []

    async def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task as soon as fewer than `count_max` are running.

        Raises:
            Exception: the error of an earlier task; the other tasks go on.
        """
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        while len(self._tasks) > self._count_max:
            await asyncio.wait(self._tasks, return_when="FIRST_COMPLETED")
        self._raise()

    async def finish(self) -> None:
        """Wait for all tasks.

        Raises:
            Exception: the error of the first task that failed.
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
