"""The owner's bound of the bandwidth, by a clock of the test's own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from meadow.client.agent import agent, assignments
from meadow.client.agent.line import CHUNK_BYTES_MIN, UPLOAD_CHUNK_BYTES_MAX
from meadow.client.agent.token_bucket import BURST_S, TokenBucket

from .. import fake_fleet
from ..conftest import Client


class Line:
    """A clock, and a sleep that moves it."""

    def __init__(self, rate: int | None) -> None:
        self.rate, self.now_s, self.slept_s = rate, 100.0, 0.0
        self.bucket = TokenBucket(lambda: self.rate, clock=lambda: self.now_s, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
        self.slept_s += seconds


def test_the_rate_holds() -> None:
    """Over any time, no more passes than the rate and a burst; an idle line saves up no more than that."""
    line = Line(1000)
    for idle_s in (0.0, 3600.0):
        line.now_s += idle_s
        begun_s = line.now_s
        for size in (100, 900, 1, 5000, 250) * 4:
            line.bucket.take(size)
        assert line.now_s - begun_s == pytest.approx(4 * 6251 / 1000 - BURST_S)
    before_s = line.now_s
    line.now_s += BURST_S
    line.bucket.take(int(1000 * BURST_S))
    assert line.now_s == before_s + BURST_S, "no slower than the rate either"


def test_transfers_share_it() -> None:
    """Threads that take at the same time wait one behind the other."""
    line = Line(1000)
    waits: list[float] = []
    bucket = TokenBucket(lambda: 1000, clock=lambda: 100.0, sleep=waits.append)
    for _ in range(3):
        bucket.take(1000)
    assert waits == pytest.approx([1 - BURST_S, 2 - BURST_S, 3 - BURST_S])
    assert line.slept_s == 0.0


def test_it_may_change() -> None:
    """None is no limit, and holds nothing back; a later bound begins then."""
    line = Line(None)
    line.bucket.take(1 << 40)
    assert line.slept_s == 0.0 and line.bucket.chunk_bytes == UPLOAD_CHUNK_BYTES_MAX
    line.rate = 16 << 10
    line.bucket.take(16 << 10)
    assert line.slept_s == pytest.approx(1 - BURST_S) and line.bucket.chunk_bytes == CHUNK_BYTES_MIN
    line.rate = 1 << 20
    assert line.bucket.chunk_bytes == 1 << 18


def test_a_slow_transfer_keeps_no_sign_of_life_back(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte of the tensors is held to the bound, and leases are renewed while a transfer waits."""
    client.configure("[policy]\nbandwidth_bytes_per_s_max = 65536")
    monkeypatch.setattr(fake_fleet, "LEASE_S", 1.0)
    monkeypatch.setattr(assignments, "LEASE_BEATS", 50)
    waits: list[float] = []
    renewed = threading.Event()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        assert renewed.wait(fake_fleet.PATIENCE_S), "a transfer waits, and no lease is renewed"

    def bucket(rate: Any) -> TokenBucket:
        return TokenBucket(rate, clock=lambda: 100.0, sleep=sleep)

    monkeypatch.setattr(agent, "TokenBucket", bucket)

    async def scenario() -> None:
        async with client.connected():
            client.fleet.send(client.instruction("a", values=1 << 16))
            await client.fleet.until(lambda: client.fleet.downloads)
            before = len(client.fleet.progress)
            await client.fleet.until(lambda: len(client.fleet.progress) >= before + 3)
            renewed.set()
            assert client.count_of(await client.fleet.reply("a")) == 1

    asyncio.run(scenario())
    files = [
        next(folder.iterdir()).stat().st_size
        for folder in (client.fleet.blobs, client.fleet.received)
    ]
    assert max(waits) == pytest.approx(sum(files) / 65536 - BURST_S)
    assert len(waits) > files[1] // (65536 * BURST_S), "it is sent in chunks of a burst"
