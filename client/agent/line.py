"""The state of the line to the server: the chunk size, and the bytes transferred.

A connection that breaks loses its incomplete chunks. If connections break often, chunks become
small, so that each connection completes some; without losses they become large again.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CHUNK_BYTES_MIN", "UPLOAD_CHUNK_BYTES_MAX", "LineState"]

CHUNK_BYTES_MIN: Final = 4 << 10
UPLOAD_CHUNK_BYTES_MAX: Final = 1 << 20
"""The largest chunk that a server accepts."""
SMALLER: Final = 4
STEADY_CHUNKS: Final = 16
"""After so many chunks without a loss, the chunk size doubles."""


class LineState:
    """Outlives the connections; transfers in several threads report their progress to it.

    Attributes:
        chunk_bytes: the present size of a chunk.
        carried_bytes: the bytes of tensor files that have arrived, in both directions.
        sent_bytes: the bytes of messages and tensor files to the server.
        received_bytes: those from the server.
    """

    def __init__(self) -> None:
        self.chunk_bytes = self._most = UPLOAD_CHUNK_BYTES_MAX
        self.carried_bytes = self.sent_bytes = self.received_bytes = 0
        self._since_bytes = 0
        self._begun: dict[str, int] = {}

    @property
    def is_steady(self) -> bool:
        """Whether chunks have their largest size."""
        return self.chunk_bytes == self._most

    def allow_chunks(self, size_bytes: int) -> None:
        """Set the server's preferred largest chunk size; 0 is no preference."""
        if size_bytes:
            self._most = max(CHUNK_BYTES_MIN, min(UPLOAD_CHUNK_BYTES_MAX, size_bytes))
            self.chunk_bytes = min(self.chunk_bytes, self._most)

    def carried(self, size_bytes: int) -> None:
        """Note that `size_bytes` more have arrived."""
        self.carried_bytes += size_bytes
        self._since_bytes += size_bytes
        while self._since_bytes >= STEADY_CHUNKS * self.chunk_bytes:
            self._since_bytes -= STEADY_CHUNKS * self.chunk_bytes
            self.chunk_bytes = min(self._most, 2 * self.chunk_bytes)

    def lost(self) -> None:
        """Note that a connection broke during a transfer."""
        if self._since_bytes < STEADY_CHUNKS // 2 * self.chunk_bytes:
            self.chunk_bytes = max(CHUNK_BYTES_MIN, self.chunk_bytes // SMALLER)
        self._since_bytes = 0

    # ------------------------------------------------------------------ uploads

    def begin(self, blob_id: str) -> bool:
        """Note the start of an upload; return whether the server may have a part of the file."""
        again = blob_id in self._begun
        self._begun.setdefault(blob_id, 0)
        return again

    def arrived(self, blob_id: str, size_bytes: int) -> None:
        """Note how many bytes of a file the server reports to have."""
        more = max(0, size_bytes - self._begun.get(blob_id, 0))
        self.sent_bytes += more
        self.carried(more)
        self._begun[blob_id] = size_bytes

    def done(self, blob_id: str) -> None:
        """Note that the server has a file, or does not want it."""
        self._begun.pop(blob_id, None)
