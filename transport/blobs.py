"""Blobs: files that travel as checksummed chunks and go on where a lost connection stopped.

Nothing here knows the network. `chunks` reads what one side sends; a `Receiver` writes what the
other side gets, keeps the part over restarts, and gives the file its name only when its size and
its checksum are the declared ones.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ..errors import LimitError, ProtocolError, StoreError
from .chunk_wire import Piece
from .crc import combine_crc32
from .durable import sync_folder, write_all
from .fleet_pb2 import Blob, Chunk
from .tensors import checksum

__all__ = [
    "CHUNK_BYTES",
    "CHUNK_BYTES_MAX",
    "Receiver",
    "blob_path",
    "check_blob_id",
    "chunks",
    "new_blob_id",
]

CHUNK_BYTES: Final = 1 << 20
CHUNK_BYTES_MAX: Final = 4 << 20
"""The largest chunk that is accepted."""

_ID = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)


def new_blob_id() -> str:
    """Return an id that nobody has used."""
    return secrets.token_hex(16)


def check_blob_id(blob_id: str) -> str:
    """Return `blob_id` if it is one; every path made of an id goes through here.

    Raises:
        ProtocolError: it is anything but 1 to 64 lower-case letters, digits and hyphens.
    """
    if not _ID.fullmatch(blob_id):
        raise ProtocolError(f"{blob_id!r:.80} is no blob id: [a-z0-9-], 1 to 64 of them")
    return blob_id


def blob_path(folder: Path, blob_id: str) -> Path:
    """Return where a blob lies in a folder of blobs.

    Raises:
        ProtocolError: as `check_blob_id`.
    """
    return folder / f"{check_blob_id(blob_id)}.safetensors"


def chunks(
    path: Path, offset: int = 0, chunk_bytes: int | Callable[[], int] = CHUNK_BYTES
) -> Iterator[Piece]:
    """Read a file from `offset` to its end, in pieces that each carry their checksum.

    `chunk_bytes` may be a function, which is asked before every piece.

    Raises:
        StoreError: the file cannot be read.
        ProtocolError: `offset` is behind its end.
    """
    size_of_next = chunk_bytes if callable(chunk_bytes) else lambda: chunk_bytes
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        size = os.fstat(fd).st_size
        if offset > size:
            raise ProtocolError(f"offset {offset} is behind the end of a blob of {size} bytes")
        while offset < size:
            wanted = size_of_next()
            if not 1 <= wanted <= CHUNK_BYTES_MAX:
                raise ValueError(f"chunk_bytes must be in [1, {CHUNK_BYTES_MAX}], got {wanted}")
            data = os.pread(fd, min(wanted, size - offset), offset)
            if not data:
                raise StoreError(f"{path} became shorter while it was read")
            yield Piece(offset, data, zlib.crc32(data))
            offset += len(data)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)


class Receiver:
    """Takes a blob chunk by chunk; a context manager that keeps the part when it ends early.

    `received_bytes` says where the sender has to go on. One receiver at a time may be open for
    a blob. Opening one reads what is there, which takes time for a large part.
    """

    def __init__(self, folder: Path, blob: Blob, *, size_max: int, fsync: bool = True) -> None:
        """Open the blob's part in `folder`, or find the whole blob there.

        Without `fsync` a power cut may leave other bytes under the blob's name; the next
        receiver notices, as it checks what is there.

        Raises:
            LimitError: the blob is declared larger than `size_max` or than the free disk.
            ProtocolError: its id is none, or its name is taken by other bytes.
            StoreError: the disk fails, or another receiver has the part open.
        """
        self.path = blob_path(folder, blob.id)
        self._part = folder / f"{blob.id}.part"
        self._blob = blob
        self._fsync = fsync
        self._crc32 = self.received_bytes = 0
        self._fd = -1
        self._kept = False
        if blob.size_bytes > size_max:
            raise LimitError(f"{self._who} of {blob.size_bytes} bytes exceeds {size_max}")
        if self.path.exists():
            self._adopt()
        else:
            self._check_disk()
            self._open_part()

    @property
    def complete(self) -> bool:
        """Whether every byte is here; `finish` then checks and keeps them."""
        return self.received_bytes == self._blob.size_bytes

    def write(self, chunk: Chunk | Piece) -> None:
        """Append one chunk.

        Raises:
            ProtocolError: it does not start where the part ends, or its checksum is wrong.
            LimitError: it is too large, or goes beyond the declared size.
            StoreError: the disk is full or fails. After any error the part is as before.
        """
        data = chunk.data
        end = chunk.offset + len(data)
        if chunk.offset != self.received_bytes:
            raise ProtocolError(
                f"{self._who}: a chunk at {chunk.offset}, not {self.received_bytes}"
            )
        if not 0 < len(data) <= CHUNK_BYTES_MAX:
            raise LimitError(f"{self._who}: a chunk of {len(data)} bytes, not 1-{CHUNK_BYTES_MAX}")
        if end > self._blob.size_bytes:
            raise LimitError(f"{self._who}: {end} bytes, {self._blob.size_bytes} were declared")
        if zlib.crc32(data) != chunk.crc32:
            raise ProtocolError(f"{self._who}: the chunk at {chunk.offset} is corrupt")
        try:
            write_all(self._fd, data)
        except OSError as error:
            os.ftruncate(self._fd, self.received_bytes)
            os.lseek(self._fd, self.received_bytes, os.SEEK_SET)
            raise StoreError(f"{self._part} cannot be written: {error.strerror}") from error
        if len(data) == CHUNK_BYTES:  # the usual one: its matrix is known
            self._crc32 = combine_crc32(self._crc32, chunk.crc32, CHUNK_BYTES)
        else:
            self._crc32 = zlib.crc32(data, self._crc32)
        self.received_bytes = end

    def finish(self) -> Path:
        """Check the whole blob, make it durable and return its path; twice does no harm.

        Raises:
            ProtocolError: bytes are missing; or the checksum is wrong, and the part is dropped.
            StoreError: the disk fails.
        """
        if self._kept:
            return self.path
        if self._fd < 0:
            raise StoreError(f"{self._who} is not being received any more")
        if not self.complete:
            there = f"{self.received_bytes} of {self._blob.size_bytes} bytes"
            raise ProtocolError(f"{self._who}: only {there} are here")
        if self._crc32 != self._blob.crc32:
            self.discard()
            raise ProtocolError(f"{self._who}: its checksum is not the declared one")
        try:
            if self._fsync:
                os.fsync(self._fd)
            os.rename(self._part, self.path)
            if self._fsync:
                sync_folder(self.path.parent)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be kept: {error.strerror}") from error
        self._kept = True
        self.close()
        return self.path

    def discard(self) -> None:
        """Drop the part and close; a blob that is kept stays."""
        if self._fd >= 0:
            self._part.unlink(missing_ok=True)
            self._crc32 = self.received_bytes = 0
        self.close()

    def close(self) -> None:
        """Let go of the part; it stays for the next receiver."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _who(self) -> str:
        return f"blob {self._blob.id}"

    def _adopt(self) -> None:
        """Accept a blob that is here already: its acknowledgement may have been lost."""
        there = checksum(self.path)
        if (there.size_bytes, there.crc32) != (self._blob.size_bytes, self._blob.crc32):
            raise ProtocolError(f"{self._who}: the id belongs to other bytes already")
        self.received_bytes = there.size_bytes
        self._kept = True

    def _check_disk(self) -> None:
        disk = os.statvfs(self.path.parent)
        free = disk.f_bavail * disk.f_frsize
        here = self._part.stat().st_size if self._part.exists() else 0
        if self._blob.size_bytes - here > free:
            needed = self._blob.size_bytes - here
            raise LimitError(f"{self._who} needs {needed} bytes more, the disk has {free}")

    def _open_part(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(self._part, flags, 0o644)
            self._take_part()
        except BlockingIOError as error:
            self.close()
            raise StoreError(f"{self._who} is being received already") from error
        except OSError as error:
            self.close()
            raise StoreError(f"{self._part} cannot be opened: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def _take_part(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = checksum(self._part)
        if there.size_bytes > self._blob.size_bytes:  # of another blob, once
            os.ftruncate(self._fd, 0)
        else:
            self._crc32, self.received_bytes = there.crc32, there.size_bytes
        os.lseek(self._fd, self.received_bytes, os.SEEK_SET)
