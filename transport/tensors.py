"""Files of tensors in the safetensors format, written blockwise and read in slices.

The format: eight bytes, little-endian, with the header's length; the header, a JSON object of
names with dtype, shape and extent; the data, without gaps. There is nothing in it to execute.
This reader checks everything in a file before it uses it, and never loads a whole file.

Source: Hugging Face, safetensors 0.8, README "Format".
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32 as crc32_of

from ..errors import ProtocolError, StoreError
from ..flower.messages import FlatTensor, dtype_of
from .durable import Writeback, replacing, write_all
from .file_pool import FilePool, open_held
from .header import CODES, Extent, parse_header, read_length
from .layout import BLOCK_BYTES, FileLayout

__all__ = [
    "FileInfo",
    "FileTensor",
    "TensorFile",
    "checksum",
    "holds",
    "whole_file",
    "write_layout",
    "write_tensors",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file's size, in bytes, and the CRC-32 of its content; both together identify it."""

    size_bytes: int
    crc32: int


def holds(dtype: np.dtype[np.generic]) -> bool:
    """Say whether a file can hold tensors of `dtype`."""
    return dtype.name in CODES


def write_tensors(
    path: Path,
    tensors: Mapping[str, FlatTensor | NDArray[np.generic] | bytes],
    *,
    fsync: bool,
    metadata: Mapping[str, str] | None = None,
    file_pool: FilePool | None = None,
) -> FileInfo:
    """Write `tensors` in their order, over a spare file if there is one; bytes become a vector of
    uint8.

    Guarantees: the same tensors give the same bytes; `path` holds the old file or the new one,
        never a part; memory stays within a block, however large the tensors are.
    Raises:
        ProtocolError: a name is too long, or the format has no such dtype.
        StoreError: the file cannot be written.
    """
    return write_layout(path, FileLayout(tensors, metadata), fsync=fsync, file_pool=file_pool)


def write_layout(
    path: Path, layout: FileLayout, *, fsync: bool, file_pool: FilePool | None = None
) -> FileInfo:
    """Write the tensors of a layout; see `write_tensors`.

    Raises:
        StoreError: the file cannot be written.
    """
    size = crc = 0
    with replacing(path, fsync=fsync, file_pool=file_pool, size_bytes=layout.size_bytes) as fd:
        writeback = Writeback(fd)
        for block in layout.blocks():
            crc = crc32_of(block, crc)
            write_all(fd, block)
            size += len(block)
            if fsync:
                writeback.wrote(size)
    return FileInfo(size_bytes=size, crc32=crc)


class FileTensor:
    """A `FlatTensor` in a file; `file` identifies the file, so that a whole file is recognised."""

    __slots__ = ("_offset", "dtype", "file", "name", "shape", "size")

    def __init__(self, file: TensorFile, name: str, extent: Extent) -> None:
        self.file = file
        self.name = name
        self.dtype = dtype_of(extent.dtype)
        self.shape = extent.shape
        self.size = math.prod(extent.shape)
        self._offset = extent.begin

    def __getitem__(self, values: slice) -> NDArray[np.generic]:
        """Read values into a new array, without mapping the file."""
        start, stop, step = values.indices(self.size)
        assert step == 1, "a tensor is read in plain slices"
        block = np.empty(max(0, stop - start), self.dtype)
        raw = block.view(np.uint8)
        self.file.read_into(raw.data, self._offset + start * self.dtype.itemsize)
        # Other bytes than 0 and 1 are no booleans, and some libraries trip over them.
        return raw != 0 if self.dtype == np.bool_ else block

    def numpy(self) -> NDArray[np.generic]:
        """Return all values, read-only: mapped, or read if they are not aligned."""
        aligned = self._offset % self.dtype.alignment == 0
        if self.size and aligned and self.dtype != np.bool_:
            mapped = np.frombuffer(self.file.mapped(), self.dtype, self.size, self._offset)
            return mapped.reshape(self.shape)
        values = self[:].reshape(self.shape)
        values.flags.writeable = False
        return values


class TensorFile:
    """An open file of tensors; it closes when the last of its tensors is gone.

    Each holds a file descriptor, and a second one once it is mapped.
    """

    def __init__(self, path: Path, fd: int, *, size_max: int, crc32: int | None) -> None:
        """Take over `fd`; see `open`."""
        self.path = path
        self._fd = fd
        self._closing = weakref.finalize(self, os.close, fd)
        self._mapped: mmap.mmap | None = None
        self._crc32 = crc32
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{path} is no regular file")
        self.size_bytes = status.st_size
        length = read_length(self._read(0, min(8, self.size_bytes)), self.size_bytes, size_max)
        parsed = parse_header(self._read(8, length), self.size_bytes)
        self.metadata = parsed.metadata
        self._extents = parsed.extents

    @classmethod
    def open(cls, path: Path, *, size_max: int, crc32: int | None = None) -> TensorFile:
        """Open the file and check its header.

        `crc32` is the file's checksum if it is known; it is trusted, and saves reading the file.

        Raises:
            StoreError: the file is missing or cannot be read.
            LimitError: it is larger than `size_max`, or its header exceeds a bound.
            ProtocolError: its header is malformed, or does not match the file.
        """
        try:
            fd = open_held(path, os.O_NONBLOCK)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            return cls(path, fd, size_max=size_max, crc32=crc32)
        except ProtocolError as error:
            raise type(error)(f"{path.name}: {error}") from None

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names, in the order of their data."""
        return tuple(self._extents)

    @property
    def tensors(self) -> dict[str, FileTensor]:
        """The tensors by name, in the order of their data; a new dict at every call."""
        return {name: FileTensor(self, name, extent) for name, extent in self._extents.items()}

    @property
    def info(self) -> FileInfo:
        """The file's size and CRC-32; the first call reads it once, blockwise."""
        if self._crc32 is None:
            self._crc32 = _crc32(self._fd)
        return FileInfo(size_bytes=self.size_bytes, crc32=self._crc32)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` with the bytes from `offset` on.

        Raises:
            StoreError: the disk fails, or the file has become shorter.
        """
        while len(buffer):
            try:
                size = os.preadv(self._fd, [buffer], offset)
            except OSError as error:
                raise StoreError(f"{self.path} cannot be read: {error.strerror}") from error
            if not size:
                raise StoreError(f"{self.path} ends before byte {offset + len(buffer)}")
            buffer, offset = buffer[size:], offset + size

    def link(self, path: Path) -> bool:
        """Give the file a second name; False where the disk cannot, or the first name is gone."""
        try:
            os.link(self.path, path)
        except OSError:
            return False
        if os.path.samestat(os.stat(path), os.fstat(self._fd)):
            return True
        os.unlink(path)
        return False

    def mapped(self) -> mmap.mmap:
        """Return the file as mapped, read-only memory."""
        if self._mapped is None:
            self._mapped = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
        return self._mapped

    def _read(self, offset: int, size: int) -> bytes:
        buffer = bytearray(size)
        self.read_into(memoryview(buffer), offset)
        return bytes(buffer)


def whole_file(tensors: Mapping[str, FlatTensor | bytes]) -> TensorFile | None:
    """Return the file that holds exactly these tensors in this order, if there is one."""
    first = next(iter(tensors.values()), None)
    if not isinstance(first, FileTensor) or first.file.names != tuple(tensors):
        return None
    for name, tensor in tensors.items():
        if not isinstance(tensor, FileTensor) or tensor.file is not first.file:
            return None
        if tensor.name != name:
            return None
    return first.file


def checksum(path: Path) -> FileInfo:
    """Read a file of any kind, blockwise, and return its size and CRC-32.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return FileInfo(crc32=_crc32(fd), size_bytes=os.fstat(fd).st_size)
        finally:
            os.close(fd)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error


def _crc32(fd: int) -> int:
    buffer = memoryview(bytearray(BLOCK_BYTES))
    crc = offset = 0
    while size := os.preadv(fd, [buffer], offset):
        crc = crc32_of(buffer[:size], crc)
        offset += size
    return crc
