"""Spare files: large files that are no longer needed are overwritten, not deleted and created anew.

A new file's pages have to be found, cleared and accounted for, and on a virtual machine perhaps
fetched from the host: writing 100 MB over an old file takes a third to a tenth of the time.

A reader of such a file holds a shared lock (`open_held`) as long as the file is open or mapped. A spare
file is reused only under an exclusive lock, under a name of its own and without a second name: a
file that is still read or linked is never overwritten.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..errors import StoreError

__all__ = ["SPARE_BYTES_MIN", "FilePool", "open_held"]

SPARE_BYTES_MIN: Final = 1 << 20
"""A smaller file is made anew: that is as fast."""
POOLED_FILES_MAX: Final = 64
SPARES_BYTES_MAX: Final = 4 << 30
OPENINGS_MAX: Final = 100
OPENING_WAIT_S: Final = 0.001


class FilePool:
    """A folder of files to overwrite, on the same disk as the files that replace them.

    Several processes may use one. It is bounded in files and bytes, and may be deleted at any time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, path: Path) -> None:
        """Take a file that is no longer needed; it is deleted if it is small or the pool is full.

        Raises:
            StoreError: it cannot be deleted.
        """
        try:
            size = path.lstat().st_size
            if size < SPARE_BYTES_MIN or not self._put_aside(path, size):
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreError(f"{path} cannot be deleted: {error.strerror}") from error

    def keep_all(self, folder: Path) -> None:
        """Take all files of a folder that is no longer needed, and delete the rest."""
        with suppress(OSError):
            for path in list(folder.iterdir()):
                with suppress(StoreError):
                    self.keep(path)
        shutil.rmtree(folder, ignore_errors=True)

    def take(self, path: Path, size_bytes: int) -> int | None:
        """Give a spare file the name `path`; return its descriptor, or None if there is none.

        Guarantees: the file is at most `size_bytes` long, nobody else reads or writes it, and the
            lock that ensures it is released with the descriptor. Its content is arbitrary.
        """
        if size_bytes < SPARE_BYTES_MIN:
            return None
        for spare in self._files():
            try:
                os.rename(spare, path)
            except OSError:  # somebody else has it
                continue
            if (fd := _exclusively(path)) is not None:
                if os.fstat(fd).st_size > size_bytes:
                    os.ftruncate(fd, size_bytes)
                return fd
            path.unlink(missing_ok=True)  # whoever reads it goes on reading it
        return None

    def clear(self) -> None:
        """Delete all spare files."""
        for spare in self._files():
            spare.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return sorted(self._folder.iterdir()) if self._folder.is_dir() else []

    def _put_aside(self, path: Path, size_bytes: int) -> bool:
        """Move a file here; False if there is no room, or it is on another disk."""
        sizes = []
        for spare in self._files():
            with suppress(FileNotFoundError):
                sizes.append(spare.stat().st_size)
        if len(sizes) >= POOLED_FILES_MAX or sum(sizes) + size_bytes > SPARES_BYTES_MAX:
            return False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.rename(self._folder / path.name)
        except OSError:
            return False
        return True


def open_held(path: Path, flags: int = 0) -> int:
    """Open a file for reading; it is not overwritten until its descriptor and maps are closed.

    Raises:
        OSError: it cannot be opened, or is being overwritten.
    """
    for _ in range(OPENINGS_MAX):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        try:
            if _shared(fd) and os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        time.sleep(OPENING_WAIT_S)
    raise FileNotFoundError(errno.ENOENT, "it is replaced all the time", str(path))


def _shared(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # it is being written over
        return False
    except OSError:  # the file system has no locks: no spare can be had from it either
        pass
    return True


def _exclusively(path: Path) -> int | None:
    """Open a file that no other process has open or linked; None if one has."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink == 1:
            return fd
    except OSError:
        pass
    os.close(fd)
    return None
