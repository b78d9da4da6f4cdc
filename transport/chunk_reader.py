"""Reads a file in chunks: what one side of a transfer sends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ..errors import ProtocolError, StoreError
from .chunk_wire import Piece
from .file_pool import open_held

__all__ = ["CHUNK_BYTES_MAX", "ChunkReader"]

CHUNK_BYTES_MAX: Final = 4 << 20
"""The largest chunk that is accepted."""

_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


class ChunkReader:
    """An open file and a place in it; to be closed.

    A piece is valid until the next one is read, which uses the same memory.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        """Open the file.

        Raises:
            StoreError: it cannot be opened.
            ProtocolError: `offset` is behind its end.
        """
        self._path = path
        self._offset = offset
        try:
            self._fd = open_held(path, os.O_NOFOLLOW)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror}") from error
        self._size = os.fstat(self._fd).st_size
        self._buffer = bytearray()
        if offset > self._size:
            self.close()
            raise ProtocolError(
                f"offset {offset} is behind the end of a blob of {self._size} bytes"
            )

    def read(self, chunk_bytes: int) -> Piece | None:
        """Return the next piece, of at most `chunk_bytes`; None at the end.

        Raises:
            StoreError: the disk fails, or the file has become shorter.
        """
        return self._read(chunk_bytes, 0)

    def read_cached(self, chunk_bytes: int) -> Piece | None:
        """As `read`, but only from the page cache.

        Raises:
            BlockingIOError: the disk would be waited for, or the system cannot tell.
        """
        if not _NOWAIT:
            raise BlockingIOError
        return self._read(chunk_bytes, _NOWAIT)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _read(self, chunk_bytes: int, flags: int) -> Piece | None:
        if not 1 <= chunk_bytes <= CHUNK_BYTES_MAX:
            raise ValueError(f"chunk_bytes must be in [1, {CHUNK_BYTES_MAX}], got {chunk_bytes}")
        if self._offset == self._size:
            return None
        wanted = min(chunk_bytes, self._size - self._offset)
        if wanted > len(self._buffer):
            self._buffer = bytearray(wanted)
        view = memoryview(self._buffer)
        try:
            count = os.preadv(self._fd, [view[:wanted]], self._offset, flags)
        except OSError as error:
            if flags:
                raise BlockingIOError from error
            raise StoreError(f"{self._path} cannot be read: {error.strerror}") from error
        if not count:
            raise StoreError(f"{self._path} became shorter while it was read")
        piece = Piece(self._offset, view[:count])
        self._offset += count
        return piece
