"""Runs journal calls in one thread, so that a slow disk never stalls the event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from ...errors import DamageError, StoreError
from ..journal.journal import Journal

__all__ = ["TOGETHER_MAX", "JournalThread", "until_written"]

P = ParamSpec("P")
T = TypeVar("T")

TOGETHER_MAX = 256
RETRY_S, RETRY_S_MAX = 0.2, 5.0
LOG = logging.getLogger("meadow.server")


@dataclass(slots=True)
class _Call:
    work: Callable[[], Any]
    done: asyncio.Future[Any]
    value: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self.work()
        except BaseException as error:
            self.error = error

    def settle(self) -> None:
        if self.done.done():  # the waiting task was cancelled
            return
        if self.error is None:
            self.done.set_result(self.value)
        else:
            self.done.set_exception(self.error)


class JournalThread:
    """Runs journal calls one after another, off the event loop: `await thread(method, ...)`.

    Calls that arrive while the disk is busy become durable in one transaction: the replies of
    hundreds of clients take a few syncs instead of hundreds.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    async def __call__(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the method's result, once its writes are durable.

        The method runs to its end even if the waiting task is cancelled.

        Raises:
            StoreError: the disk is full or fails.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(lambda: method(*args, **kwargs), done))
        return await done

    async def patiently(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like a call, but retried while the disk is full or fails.

        Raises:
            DamageError: the journal is damaged, so a retry cannot help.
        """
        return await until_written(lambda: self(method, *args, **kwargs))

    def close(self) -> None:
        """Finish the queued calls and end the thread."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            self._execute(batch)

    def _next_batch(self) -> list[_Call]:
        """Wait for a call, and return all queued calls; an empty list at the end."""
        batch: list[_Call] = []
        while (call := self._calls.get()) is not None:
            batch.append(call)
            if len(batch) == TOGETHER_MAX or self._calls.empty():
                return batch
        if batch:
            self._calls.put(None)
        return batch

    def _execute(self, batch: list[_Call]) -> None:
        try:
            with self._journal.together():
                for call in batch:
                    call.run()
        except Exception as error:  # the whole transaction was lost
            for call in batch:
                call.error = call.error or error
        with suppress(RuntimeError):  # the loop is closed, so no task waits
            batch[0].done.get_loop().call_soon_threadsafe(_settle, batch)


async def until_written(
    write: Callable[[], Awaitable[T]], waits: Callable[[], object] = lambda: None
) -> T:
    """Return the result of `write`, retried while the disk is full or fails.

    `waits` is called before each retry. The first failure and the recovery are logged.

    Raises:
        DamageError: the file is damaged, so a retry cannot help.
    """
    pause_s = RETRY_S
    while True:
        try:
            value = await write()
        except DamageError:
            raise
        except StoreError as error:
            if pause_s == RETRY_S:
                LOG.error("%s; the server waits until the disk has room again", error)
            waits()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)
        else:
            if pause_s != RETRY_S:
                LOG.warning("the disk has room again: the server goes on")
            return value


def _settle(batch: list[_Call]) -> None:
    for call in batch:
        call.settle()
