"""Files that are there completely or not at all, whatever dies while they are written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StoreError

__all__ = ["replacing", "sweep", "sync_folder", "write_all", "write_file"]

_TEMPORARY = ".tmp"


@contextmanager
def replacing(path: Path, *, fsync: bool, mode: int = 0o644) -> Iterator[int]:
    """Yield the descriptor of a new file that takes `path`'s place if the block ends well.

    Guarantees: a reader sees the old file or the whole new one. With `fsync` that also holds
        after a power cut, and the new file is durable when the block has ended.
    Raises:
        StoreError: the disk is full, or the folder does not take the file; `path` is untouched.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
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


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`, however little the system takes at a time."""
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


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
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
