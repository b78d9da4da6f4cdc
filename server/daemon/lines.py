"""Which clients' lines are slow, measured by the updates that they send.

A line is slow from when an upload took a second or more at less than `SLOW_BYTES_PER_S`, until one
comes at `FAST_BYTES_PER_S` or more; in between it stays what it was. The journal has it before the
upload is confirmed, and so before the reply that names the uploaded file: a server that is killed
and started again takes the lines for what they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..journal.journal import Journal
from .threads import JournalThread

__all__ = ["FAST_BYTES_PER_S", "MEASURED_BYTES_MIN", "SLOW_BYTES_PER_S", "Lines"]

SLOW_BYTES_PER_S = 6_250_000
"""50 Mbit/s: 20 MB take 3.2 s, and a quarter of it 0.8 s."""
FAST_BYTES_PER_S = 2 * SLOW_BYTES_PER_S
SLOW_S_MIN = 1.0
"""What takes less is not slow at any rate; a connection of a long delay begins slowly."""
MEASURED_BYTES_MIN = 1 << 20
"""A shorter upload says little about a line."""


class Lines:
    """The lines that are slow; the journal keeps them."""

    def __init__(self, journal: Journal, thread: JournalThread) -> None:
        self._journal = journal
        self._thread = thread
        self._slow = journal.sites.slow_lines()

    @property
    def slow(self) -> Mapping[int, int]:
        """The rates in bytes per second of the lines that are slow, by node id."""
        return MappingProxyType(self._slow)

    async def measured(self, node_id: int, size_bytes: int, seconds: float) -> None:
        """Take note of an upload; return when what changed is durable.

        Raises:
            StoreError: the disk is full or fails.
        """
        if size_bytes < MEASURED_BYTES_MIN:
            return
        rate = size_bytes / max(seconds, 1e-9)
        if node_id in self._slow:
            if rate >= FAST_BYTES_PER_S:
                await self._set(node_id, 0)
        elif rate < SLOW_BYTES_PER_S and seconds >= SLOW_S_MIN:
            await self._set(node_id, max(1, round(rate)))

    async def _set(self, node_id: int, slow_bytes_per_s: int) -> None:
        await self._thread(self._journal.sites.set_line, node_id, slow_bytes_per_s)
        if slow_bytes_per_s:
            self._slow[node_id] = slow_bytes_per_s
        else:
            self._slow.pop(node_id, None)
