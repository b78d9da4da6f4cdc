"""Holds the transfers of tensors to the bytes per second that the owner allows.

A token bucket in the form of a virtual queue: bytes reserve their time, one after the other, and wait for it. An idle
line saves up a quarter of a second.

Source: ITU-T I.371 (2004), the generic cell rate algorithm as virtual scheduling.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from .line import CHUNK_BYTES_MIN, UPLOAD_CHUNK_BYTES_MAX

__all__ = ["TokenBucket"]

BURST_S: Final = 0.25


class TokenBucket:
    """One for all transfers in both directions; used by their threads. Messages and signs of life pass it by."""

    def __init__(
        self,
        rate: Callable[[], int | None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """`rate` returns the bytes per second, None for no limit; it may change at any time."""
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at_s = -BURST_S

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk: it takes no longer than the burst, if the smallest one does not."""
        rate = self._rate()
        most = UPLOAD_CHUNK_BYTES_MAX if rate is None else int(rate * BURST_S)
        return max(CHUNK_BYTES_MIN, min(UPLOAD_CHUNK_BYTES_MAX, most))

    def take(self, size_bytes: int) -> None:
        """Wait until so many bytes may pass."""
        rate = self._rate()
        if rate is None:
            return
        with self._lock:
            now_s = self._clock()
            self._free_at_s = max(self._free_at_s, now_s - BURST_S) + size_bytes / rate
            wait_s = self._free_at_s - now_s
        if wait_s > 0:
            self._sleep(wait_s)
