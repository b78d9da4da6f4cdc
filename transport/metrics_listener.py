"""A listener that answers GET /metrics, and nothing else: for Prometheus, beside a daemon or an agent.

It has no sign-in: whoever reaches its address reads the page. A connection has one request, so many
bytes and so many seconds; more connections than `CONNECTIONS_MAX` wait to be accepted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from ..errors import UnreachableError
from .address import Address

__all__ = ["MetricsListener"]

REQUEST_BYTES_MAX: Final = 8 << 10
REQUEST_S_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 16
Page = Callable[[], Awaitable[tuple[bytes, str]]]
"""Returns the page and its media type."""


class MetricsListener:
    """Listens on one address until it is closed."""

    def __init__(self, page: Page, *, key: str) -> None:
        """`key` is the setting with the address, which the error names."""
        self._page = page
        self._key = key
        self._server: asyncio.Server | None = None
        self._open = asyncio.Semaphore(CONNECTIONS_MAX)
        self.port = 0

    async def start(self, address: Address) -> None:
        """Begin to listen.

        Raises:
            UnreachableError: the address is taken, or not one of this machine.
        """
        try:
            self._server = await asyncio.start_server(
                self._serve, address.host, address.port, limit=REQUEST_BYTES_MAX, backlog=64
            )
        except OSError as error:
            raise UnreachableError(
                f"{address} cannot be listened on for /metrics: {error.strerror or error}; give another "
                f"address with {self._key}"
            ) from error
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End the listener; scrapes under way end with their connections."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(2 * REQUEST_S_MAX):
                async with self._open:
                    async with asyncio.timeout(REQUEST_S_MAX):
                        head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answer(head))
                    await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.LimitOverrunError:
            writer.write(_response("431 Request Header Fields Too Large"))
        except Exception:  # a page that fails must not end the listener
            logging.getLogger(__name__).exception("the page /metrics failed")
            writer.write(_response("500 Internal Server Error"))
        finally:
            writer.close()
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(REQUEST_S_MAX):
                    await writer.wait_closed()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        target = rest.partition(b" ")[0].partition(b"?")[0]
        if target != b"/metrics":
            return _response("404 Not Found")
        if method != b"GET":
            return _response("405 Method Not Allowed", b"", "text/plain", "Allow: GET\r\n")
        page, kind = await self._page()
        return _response("200 OK", page, kind)


def _response(status: str, body: bytes = b"", kind: str = "text/plain", more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"{more}X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
