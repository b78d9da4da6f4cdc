"""A stream of small messages in both directions: gRPC's threads below, asyncio's tasks above.

gRPC has separate connections for threads and for asyncio. Tensors use a blocking connection in
threads, which moves several times as many bytes per second. Messages use the same one, so a client
has one connection to the server, not two.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from ...errors import UnreachableError
from ...transport.fleet_pb2 import AgentMessage, ServerMessage
from .rpc_errors import rpc_errors

__all__ = ["Stream"]

Sent = tuple[AgentMessage, Callable[[], None]]


class Stream:
    """An open `Fleet.Connect`; the caller closes it.

    It reads a message only on `receive`, and holds at most one that is being sent; unread messages
    wait in gRPC, within its windows.

    Attributes:
        lost: a future that is done once the stream is closed or has ended.
    """

    def __init__(self, connect: Callable[[Iterator[AgentMessage]], Any], address: str) -> None:
        """Open the stream; `connect` makes the call, given the iterator of messages to send."""
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._address = address
        self._outgoing: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
        self._writing = asyncio.Lock()
        self._reader = ThreadPoolExecutor(1, "stream")
        self._call = connect(self._messages())
        if not self._call.add_callback(lambda: self._soon(self._lose)):
            self._lose()

    async def send(self, message: AgentMessage) -> None:
        """Send a message, and return when gRPC has taken it.

        Raises:
            UnreachableError: the stream has ended; `receive` raises the cause.
        """
        async with self._writing:
            taken: asyncio.Future[None] = self._loop.create_future()
            if not self.lost.done():
                self._outgoing.put((message, lambda: self._soon(_settle, taken)))
                await asyncio.wait((taken, self.lost), return_when="FIRST_COMPLETED")
            if not taken.done():
                raise UnreachableError(f"{self._address}: the stream has ended")

    async def receive(self) -> ServerMessage:
        """Return the server's next message; concurrent calls are served one at a time.

        Raises:
            UnreachableError, IdentityError, ProtocolError: the stream has ended.
        """
        with rpc_errors(self._address):
            message: ServerMessage | None = await self._loop.run_in_executor(
                self._reader, next, self._call, None
            )
        if message is None:
            raise UnreachableError(f"{self._address}: the server closed the connection")
        return message

    def close(self) -> None:
        """End the stream; a pending `receive` raises an `UnreachableError`."""
        self._lose()
        self._outgoing.put(None)
        self._call.cancel()
        self._reader.shutdown(wait=False)

    def _messages(self) -> Iterator[AgentMessage]:
        """Yield the messages to send, in gRPC's thread, which takes the next after sending one."""
        while (sent := self._outgoing.get()) is not None:
            message, taken = sent
            yield message
            taken()

    def _lose(self) -> None:
        _settle(self.lost)

    def _soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the event loop, if that still runs."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
