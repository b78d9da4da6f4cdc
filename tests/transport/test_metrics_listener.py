"""A listener for /metrics alone: bounded in bytes, seconds and connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from meadow.errors import UnreachableError
from meadow.transport import metrics_listener
from meadow.transport.address import Address
from meadow.transport.metrics_listener import CONNECTIONS_MAX, MetricsListener

Scenario = Callable[[int], Awaitable[None]]


async def page() -> tuple[bytes, str]:
    return b"meadow_up 1\n", "text/plain; version=0.0.4"


def listening(
    scenario: Scenario, answer: Callable[[], Awaitable[tuple[bytes, str]]] = page
) -> None:
    """Run a scenario against a listener on any port."""

    async def run() -> None:
        listener = MetricsListener(answer, key="metrics_address")
        await listener.start(Address("127.0.0.1", 0))
        try:
            await scenario(listener.port)
        finally:
            await listener.close()

    asyncio.run(run())


async def ask(port: int, text: bytes) -> bytes:
    """Return all that comes for these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    try:
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"\x00\xff\r\n\r\n", b"404 Not Found"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", b"431 Request Header"),
    ],
)
def test_one_page(request_: bytes, status: bytes) -> None:
    """GET /metrics and nothing else; a connection has one request."""

    async def scenario(port: int) -> None:
        said = await ask(port, request_)
        assert said.startswith(b"HTTP/1.1 " + status) or (status.startswith(b"431") and not said)
        assert said.endswith(b"meadow_up 1\n") == (status == b"200 OK")

    listening(scenario)


def test_who_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are, others are answered when their time is over."""
    monkeypatch.setattr(metrics_listener, "REQUEST_S_MAX", 0.3)

    async def scenario(port: int) -> None:
        idle = [
            await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * CONNECTIONS_MAX)
        ]
        for _, writer in idle[::2]:
            writer.write(b"GET /met")
        for reader, _ in idle:
            assert await asyncio.wait_for(reader.read(), 60) == b""
        assert b"200 OK" in await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        for _, writer in idle:
            writer.close()

    listening(scenario)


def test_a_page_that_fails_ends_nothing() -> None:
    """The next scrape is answered."""
    times = []

    async def fails_once() -> tuple[bytes, str]:
        times.append(1)
        if len(times) == 1:
            raise ValueError("the disk")
        return await page()

    async def scenario(port: int) -> None:
        for status in (b"500 Internal Server Error", b"200 OK"):
            assert status in await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")

    listening(scenario, fails_once)


def test_a_port_that_is_taken() -> None:
    """Is a sentence with the remedy."""

    async def scenario(port: int) -> None:
        with pytest.raises(UnreachableError, match="give another address with metrics_address"):
            await MetricsListener(page, key="metrics_address").start(Address("127.0.0.1", port))

    listening(scenario)
