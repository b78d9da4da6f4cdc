"""Floods of frames: the connection is ended, the memory stays bounded, and others are served."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from meadow.server.daemon.daemon import FLOODS_EVERY_S

from .floods import FLOODS, Blocks
from .live_server import CALL_S, LiveServer, wait_until
from .raw_http2 import RawHttp2

PEAK_BYTES_MAX = 300 << 20
"""Of the daemon, through all floods one after another; it keeps 64 MB of freed memory in each of two heaps."""
PATHS = {"fleet": "/meadow.v1.Fleet/Connect", "enroll": "/meadow.v1.Enrollment/Enroll"}
CASES = [(where, flood) for where in PATHS for flood in FLOODS]
SEEN_BY_US = ("settings", "priorities", "failing_calls", "pings")
"""gRPC does not end them, as a rule."""
ATTEMPTS_MAX = 8
"""Where the server is behind with its acknowledgements, on a busy machine, gRPC ends a flood itself."""


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server for the floods alone, as its events are counted."""
    with closing(LiveServer(tmp_path_factory.mktemp("flooded"))) as live:
        yield live


@pytest.mark.parametrize(("where", "flood"), CASES)
def test_a_flood_is_ended(flooded: LiveServer, tmp_path: Path, where: str, flood: str) -> None:
    """It goes on for as long as its connection does, which the server ends and writes down."""
    pair = flooded.enroll("flooding", tmp_path)
    address = flooded.fleet if where == "fleet" else flooded.enroll_address
    told = len(flooded.events(kind="flood_ended"))

    def is_seen() -> bool:
        return flood not in SEEN_BY_US or len(flooded.events(kind="flood_ended")) > told

    for _ in range(ATTEMPTS_MAX):
        hostile = RawHttp2(address, pair if where == "fleet" else None)
        sending = threading.Thread(
            target=_send, args=(hostile, FLOODS[flood](PATHS[where])), daemon=True
        )
        sending.start()
        sending.join(3 * CALL_S)
        assert not sending.is_alive(), "the connection is still open"
        hostile.close()
        assert flooded.peak_bytes() < PEAK_BYTES_MAX
        flooded.serves(pair)
        with suppress(AssertionError):
            wait_until(is_seen, 3 * FLOODS_EVERY_S)
            break
    assert is_seen(), "it was not written down"
    if flood in SEEN_BY_US:
        event = flooded.events(kind="flood_ended")[-1]
        assert (event["address"], event["listener"]) == ("127.0.0.1", where)


def _send(hostile: RawHttp2, blocks: Blocks) -> None:
    with suppress(OSError, ValueError):
        for block in blocks:
            hostile.send(block)
