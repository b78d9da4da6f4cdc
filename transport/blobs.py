"""Blobs: files that travel in chunks with a checksum, and resume after a lost connection.

This module does not use the network. `chunks` reads the bytes to send; a `Receiver` writes the bytes
received, keeps a partial file across restarts, and gives the file its name only when its size and its
checksum match the declared ones.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from zlib_ng.zlib_ng import crc32 as crc32_of

from ..errors import DamageError, LimitError, ProtocolError, StoreError
from .chunk_reader import CHUNK_BYTES_MAX, ChunkReader
from .chunk_wire import Piece
from .file_pool import FilePool
from .fleet_pb2 import Blob, Chunk, Envelope
from .part import Part
from .tensors import checksum

__all__ = [
    "CHUNK_BYTES",
    "CHUNK_BYTES_MAX",
    "Receiver",
    "blob_path",
    "blobs_of",
    "check_blob_id",
    "chunks",
    "new_blob_id",
    "packed_bytes_in",
    "require_intact",
]

CHUNK_BYTES: Final = 1 << 20
_ID = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)


def new_blob_id() -> str:
    """Return a new, unique id."""
    return secrets.token_hex(16)


def check_blob_id(blob_id: str) -> str:
    """Return `blob_id` if it is well-formed; every path with an id is checked here.

    Raises:
        ProtocolError: it is anything but 1 to 64 lower-case letters, digits and hyphens.
    """
    if not _ID.fullmatch(blob_id):
        raise ProtocolError(f"{blob_id!r:.80} is no blob id: [a-z0-9-], 1 to 64 of them")
    return blob_id


def blob_path(folder: Path, blob_id: str) -> Path:
    """Return the path of a blob in a folder of blobs.

    Raises:
        ProtocolError: as `check_blob_id`.
    """
    return folder / f"{check_blob_id(blob_id)}.safetensors"


def blobs_of(envelope: Envelope) -> list[Blob]:
    """Return the blobs that a message refers to, each once, in the order of the message."""
    return list(
        {
            record.arrays.blob.id: record.arrays.blob
            for record in envelope.records
            if record.HasField("arrays") and record.arrays.HasField("blob")
        }.values()
    )


def require_intact(path: Path, blob: Blob) -> None:
    """Check that a file still has the size and checksum of its blob.

    Raises:
        DamageError: the file has changed.
        StoreError: the file cannot be read.
    """
    there = checksum(path)
    if (there.size_bytes, there.crc32) != (blob.size_bytes, blob.crc32):
        raise DamageError(f"{path.name} has changed on the disk since it was written there")


def packed_bytes_in(envelope: Envelope) -> int:
    """Return the size of the tensors inside a message, in bytes."""
    return sum(len(record.arrays.packed) for record in envelope.records)


def chunks(path: Path, offset: int = 0, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Piece]:
    """Read a file from `offset` to its end in pieces, each of which is valid until the next one.

    Raises:
        StoreError: the file cannot be read.
        ProtocolError: `offset` is behind its end.
    """
    with closing(ChunkReader(path, offset)) as reader:
        while (piece := reader.read(chunk_bytes)) is not None:
            yield piece


class Receiver:
    """Receives a blob chunk by chunk; a context manager that keeps a partial file.

    The sender resumes at `received_bytes`. One receiver at a time may be open for a blob. Opening one
    reads the existing part, which takes time for a large one.

    Attributes:
        resumed: whether a part existed; it may be of another version than the one being sent.
    """

    def __init__(
        self,
        folder: Path,
        blob: Blob,
        *,
        size_max: int,
        fsync: bool = True,
        file_pool: FilePool | None = None,
    ) -> None:
        """Open the blob's part in `folder`, or find the whole blob there.

        Without `fsync` a power cut may leave other bytes under the blob's name; the next
        receiver notices, as it checks what is there.

        Raises:
            LimitError: the blob is declared larger than `size_max` or than the free disk.
            ProtocolError: its id is none, or its name is taken by other bytes.
            StoreError: the disk fails, or another receiver has the part open.
        """
        self.path = blob_path(folder, blob.id)
        self._blob = blob
        self._fsync = fsync
        self._part: Part | None = None
        self._kept = False
        if blob.size_bytes > size_max:
            raise LimitError(f"{self._who} of {blob.size_bytes} bytes exceeds {size_max}")
        if self.path.exists():
            self._adopt()
        else:
            self._check_disk(file_pool)
            self._open_part(file_pool)
        self.resumed = self.received_bytes > 0

    @property
    def received_bytes(self) -> int:
        """How many bytes of the blob have arrived."""
        if self._part is not None:
            return self._part.received_bytes
        return self._blob.size_bytes if self._kept else 0

    @property
    def complete(self) -> bool:
        """Whether every byte has arrived; `finish` then verifies and keeps them."""
        return self.received_bytes == self._blob.size_bytes

    def write(self, chunk: Chunk | Piece) -> None:
        """Append one chunk.

        Raises:
            ProtocolError: it does not start where the part ends.
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
        part = self._opened()
        try:
            part.append(data, crc32_of(data, part.crc32), durable=self._fsync)
        except OSError as error:
            raise StoreError(f"{self._who} cannot be written: {error.strerror}") from error

    def finish(self) -> Path:
        """Verify the whole blob, make it durable and return its path; idempotent.

        Raises:
            ProtocolError: bytes are missing; or the checksum is wrong, and the part is dropped.
            StoreError: the disk fails.
        """
        if self._kept:
            return self.path
        part = self._opened()
        if not self.complete:
            there = f"{self.received_bytes} of {self._blob.size_bytes} bytes"
            raise ProtocolError(f"{self._who}: only {there} are here")
        if part.crc32 != self._blob.crc32:
            part.drop()
            raise ProtocolError(f"{self._who}: its checksum is not the declared one")
        try:
            part.keep(self.path, durable=self._fsync)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be kept: {error.strerror}") from error
        self._kept = True
        return self.path

    def close(self) -> None:
        """Close the part, which stays for the next receiver."""
        if self._part is not None:
            self._part.close()

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

    def _opened(self) -> Part:
        if self._part is None or not self._part.is_open:
            raise StoreError(f"{self._who} is not being received any more")
        return self._part

    def _adopt(self) -> None:
        """Accept a blob that has arrived before: its acknowledgement may have been lost."""
        there = checksum(self.path)
        if (there.size_bytes, there.crc32) != (self._blob.size_bytes, self._blob.crc32):
            raise ProtocolError(f"{self._who}: the id belongs to other bytes already")
        self._kept = True

    def _check_disk(self, file_pool: FilePool | None) -> None:
        disk = os.statvfs(self.path.parent)
        part = self.path.with_suffix(".part")
        here = part.stat().st_size if part.exists() else 0
        needed, free = self._blob.size_bytes - here, disk.f_bavail * disk.f_frsize
        if needed > free and file_pool is not None:
            file_pool.clear()
            self._check_disk(None)
        elif needed > free:
            raise LimitError(f"{self._who} needs {needed} bytes more, the disk has {free}")

    def _open_part(self, file_pool: FilePool | None) -> None:
        size = self._blob.size_bytes
        try:
            self._part = Part(self.path.parent, self._blob.id, size_bytes=size, file_pool=file_pool)
        except BlockingIOError as error:
            raise StoreError(f"{self._who} is being received already") from error
        except OSError as error:
            raise StoreError(f"{self._who} cannot be received: {error.strerror}") from error
