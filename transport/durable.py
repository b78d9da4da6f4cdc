"""Atomic and durable writes: a file exists completely or not at all, also after a crash."""

from __future__ import annotations

import ctypes
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import StoreError
from .file_pool import FilePool

__all__ = [
    "Writeback",
    "make_folder",
    "replacing",
    "sweep",
    "sync_folder",
    "write_all",
    "write_file",
]

_TEMPORARY = ".tmp"

WRITEBACK_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2  # fcntl.h


def _find_sync_file_range() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    found = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return found


_sync_file_range = _find_sync_file_range()


@contextmanager
def replacing(
    path: Path,
    *,
    fsync: bool,
    mode: int = 0o644,
    file_pool: FilePool | None = None,
    size_bytes: int = 0,
) -> Iterator[int]:
    """Yield the descriptor of a new file that replaces `path` when the block succeeds.

    With `file_pool` it may be a spare file; the block then writes all of `size_bytes`.

    Guarantees: a reader sees the old file or the whole new one. With `fsync` that also holds
        after a power cut, and the new file is durable when the block has ended.
    Raises:
        StoreError: the disk is full, or the folder does not take the file; `path` is untouched.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        fd = file_pool.take(temporary, size_bytes) if file_pool is not None else None
        if fd is None:
            fd = os.open(temporary, flags, mode)
        try:
            try:
                yield fd
                if fsync:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if fsync:
            sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error


class Writeback:
    """Has the disk begin with a file while it is still being written.

    The fsync at the end then finds little left to wait for. Does nothing where the system cannot.
    """

    def __init__(self, fd: int, offset: int = 0) -> None:
        """The file is complete up to `offset`."""
        self._fd = fd
        self._begun = offset

    def wrote(self, end: int) -> None:
        """Everything up to `end` is written."""
        if _sync_file_range is not None and end - self._begun >= WRITEBACK_BYTES:
            _sync_file_range(self._fd, self._begun, end - self._begun, _SYNC_FILE_RANGE_WRITE)
            self._begun = end


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`, in as many calls as it takes."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view) :]


def write_file(path: Path, data: bytes, *, fsync: bool = True, mode: int = 0o644) -> None:
    """Write a small file in one step; keys get `mode=0o600`.

    Raises:
        StoreError: as `replacing`.
    """
    with replacing(path, fsync=fsync, mode=mode) as fd:
        write_all(fd, data)


def make_folder(folder: Path, *, mode: int = 0o777) -> None:
    """Make a folder and its missing parents, durably.

    Raises:
        StoreError: the disk is full, or something else has the name.
    """
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    try:
        for each in reversed(missing):
            each.mkdir(mode=mode, exist_ok=True)
            sync_folder(each.parent)
    except OSError as error:
        raise StoreError(f"{error.filename} cannot be made: {error.strerror or error}") from error


def sync_folder(folder: Path) -> None:
    """Make the directory entries of `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sweep(folder: Path) -> int:
    """Remove what a killed writer left in `folder`; return how many files that were.

    Only for a folder that nobody is writing to at the moment.
    """
    leftovers = list(folder.glob(f".*{_TEMPORARY}"))
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return len(leftovers)
