"""A TCP proxy as companies have them: it ends a connection that is idle for so long."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self


class IdleProxy:
    """Passes connections on to a port of this machine; a context manager.

    Attributes:
        port: where it listens.
        cuts: how many connections it has ended because they were idle.
    """

    def __init__(self, target: int, *, idle_s: float, unnoticed_bytes: int = 0) -> None:
        """A connection is idle while it carries nothing; with `unnoticed_bytes`, while neither side sends more
        than that at once, as pings are small."""
        self._target, self._idle_s, self._unnoticed_bytes = target, idle_s, unnoticed_bytes
        self._lines: set[asyncio.Task[None]] = set()
        self.port = self.cuts = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        with suppress(asyncio.CancelledError):  # which asyncio would print
            await self._carry([(reader, far_writer), (far_reader, writer)])
        writer.close()
        far_writer.close()

    async def _carry(self, ways: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        now_s = asyncio.get_running_loop().time
        seen_s = now_s()

        async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            nonlocal seen_s
            with suppress(OSError):
                while data := await source.read(1 << 16):
                    if len(data) > self._unnoticed_bytes:
                        seen_s = now_s()
                    sink.write(data)
                    await sink.drain()

        tasks = [asyncio.create_task(carry(*way)) for way in ways]
        try:
            while all(not task.done() for task in tasks):
                left_s = seen_s + self._idle_s - now_s()
                if left_s <= 0:
                    self.cuts += 1
                    return
                await asyncio.wait(tasks, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
