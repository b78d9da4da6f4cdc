"""A transfer that ends while its file is being opened leaves no file open."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from meadow.server.daemon.blob_service import open_in_thread
from meadow.transport.blobs import Receiver
from meadow.transport.fleet_pb2 import Blob


def test_cancelled_while_opening(tmp_path: Path) -> None:
    """Whoever comes next can open the part: it is not locked for ever."""
    blob, go_on = Blob(id="x", size_bytes=10), threading.Event()

    def open_() -> Receiver:
        receiver = Receiver(tmp_path, blob, size_max=10)
        begun.set()
        go_on.wait(60)
        return receiver

    async def transfer() -> None:
        async with open_in_thread(open_):
            raise AssertionError("it was cancelled before")

    async def scenario() -> None:
        task = asyncio.create_task(transfer())
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    begun = threading.Event()
    asyncio.run(scenario())
    Receiver(tmp_path, blob, size_max=10).close()
