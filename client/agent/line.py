"""What is known of the line to the server: how large chunks may be, and what it has carried.

A connection that breaks takes with it what has not arrived as a whole chunk. Where connections break
often, chunks are small, so that each connection carries some; where all goes well they are large again.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CHUNK_BYTES_MIN", "UPLOAD_CHUNK_BYTES_MAX", "LineState"]

CHUNK_BYTES_MIN: Final = 4 << 10
UPLOAD_CHUNK_BYTES_MAX: Final = 1 << 20
"""The largest chunk that a server takes."""
SMALLER: Final = 4
STEADY_CHUNKS: Final = 16
"""So many chunks without a loss, and they may be twice as large."""


class LineState:
    """Outlives the connections over it; transfers in several threads tell it how they fare.

    Attributes:
        chunk_bytes: how large a chunk may be now.
        carried_bytes: how much of files of tensors is known to have arrived, either way.
    """

    def __init__(self) -> None:
        self.chunk_bytes = self._most = UPLOAD_CHUNK_BYTES_MAX
        self.carried_bytes = 0
        self._since_bytes = 0
        self._begun: dict[str, int] = {}

    @property
    def is_steady(self) -> bool:
        """Whether chunks are as large as they may be."""
        return self.chunk_bytes == self._most

    def allow_chunks(self, size_bytes: int) -> None:
        """The server wishes for chunks of at most this size; 0 is no wish."""
        if size_bytes:
            self._most = max(CHUNK_BYTES_MIN, min(UPLOAD_CHUNK_BYTES_MAX, size_bytes))
            self.chunk_bytes = min(self.chunk_bytes, self._most)

    def carried(self, size_bytes: int) -> None:
        """So many bytes more have arrived."""
        self.carried_bytes += size_bytes
        self._since_bytes += size_bytes
        while self._since_bytes >= STEADY_CHUNKS * self.chunk_bytes:
            self._since_bytes -= STEADY_CHUNKS * self.chunk_bytes
            self.chunk_bytes = min(self._most, 2 * self.chunk_bytes)

    def lost(self) -> None:
        """A connection broke during a transfer."""
        if self._since_bytes < STEADY_CHUNKS // 2 * self.chunk_bytes:
            self.chunk_bytes = max(CHUNK_BYTES_MIN, self.chunk_bytes // SMALLER)
        self._since_bytes = 0

    # ------------------------------------------------------------------ uploads

    def begin(self, blob_id: str) -> bool:
        """Note that a file is being sent; whether the server may have a part of it already."""
        again = blob_id in self._begun
        self._begun.setdefault(blob_id, 0)
        return again

    def arrived(self, blob_id: str, size_bytes: int) -> None:
        """The server says how much of a file it has."""
        self.carried(max(0, size_bytes - self._begun.get(blob_id, 0)))
        self._begun[blob_id] = size_bytes

    def done(self, blob_id: str) -> None:
        """A file is there, or is not wanted."""
        self._begun.pop(blob_id, None)
