"""Gives access to the present connection, or to the next one."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from ...errors import MeadowError
from ...transport.fleet_pb2 import AgentMessage
from .connection import Connection

__all__ = ["RETRY_S_MAX", "RETRY_S_MIN", "Uplink", "retry_delay_s"]

RETRY_S_MIN = 0.2
RETRY_S_MAX = 15.0


def retry_delay_s(attempt: int) -> float:
    """Return the delay in seconds before an attempt, counted from 0: exponential backoff with a
    bound and jitter."""
    return min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(attempt, 10)) * random.uniform(0.5, 1.0)


class Uplink:
    """The present connection; without one, callers wait for the next."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._attached = asyncio.Event()

    def attach(self, connection: Connection) -> None:
        """Set the present connection."""
        self._connection = connection
        self._attached.set()

    def detach(self) -> None:
        """Note that there is no connection."""
        self._connection = None
        self._attached.clear()

    @property
    def attached(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    async def online(self) -> Connection:
        """Return the connection; wait for one if there is none."""
        while self._connection is None:
            await self._attached.wait()
        return self._connection

    async def pause(self, connection: Connection, attempt: int) -> int:
        """Wait before a failed call is repeated on this connection, or on the next; return the
        number of the next attempt, which restarts at 0 on each connection."""
        if self._connection is connection:
            await asyncio.wait((connection.lost,), timeout=retry_delay_s(attempt))
        return attempt + 1 if self._connection is connection else 0

    async def try_to_send(self, message: AgentMessage) -> None:
        """Send a message that is useless later; without a connection, drop it."""
        if self._connection is not None:
            with suppress(MeadowError):
                await self._connection.send(message)
