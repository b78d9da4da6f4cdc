"""A folder of files for the processes of one machine, in memory where there is room.

A killed process cannot remove its folder. Each folder therefore has a lock beside it, which the system
releases when the process ends; creating a folder first removes those whose lock is free.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import weakref
from pathlib import Path

from ..errors import StoreError

__all__ = ["SharedFolder"]

PREFIX = "meadow-simulation-"
LOCK = ".lock"
MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 1 << 30
"""Less free memory than this (a container has 64 MB) is left alone: the files go to disk."""


class SharedFolder:
    """A new, empty folder, removed by `close` or when the process exits normally."""

    def __init__(self, parent: Path | None = None) -> None:
        """Make the folder in `parent`; by default in memory, or in TMPDIR.

        Raises:
            StoreError: it cannot be made.
        """
        parent = parent or _default_parent()
        try:
            _sweep(parent)
            lock_fd, self.path = _locked(parent)
            self._closing = weakref.finalize(self, _let_go, self.path, lock_fd, os.getpid())
            self.path.mkdir(mode=0o700)
        except OSError as error:
            raise StoreError(
                f"{parent} takes no folder for the simulation: {error.strerror}; "
                "set TMPDIR to one that does"
            ) from error

    def close(self) -> None:
        """Remove the folder and its content; idempotent."""
        self._closing()


def _default_parent() -> Path:
    try:
        memory = os.statvfs(MEMORY)
    except OSError:
        return Path(tempfile.gettempdir())
    roomy = memory.f_bavail * memory.f_frsize >= FREE_BYTES_MIN
    return MEMORY if roomy and os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def _locked(parent: Path) -> tuple[int, Path]:
    """Lock an unused name; return the lock's descriptor and the folder of that name."""
    while True:
        folder = parent / f"{PREFIX}{secrets.token_hex(8)}"
        lock = _lock_of(folder)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if lock.exists():
            return fd, folder
        os.close(fd)  # somebody swept between the two calls


def _sweep(parent: Path) -> None:
    for lock in parent.glob(f"{PREFIX}*{LOCK}"):
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # another user's, or just gone
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(lock.with_name(lock.name.removesuffix(LOCK)))
        except BlockingIOError:
            pass  # its process lives
        finally:
            os.close(fd)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _lock_of(folder).unlink(missing_ok=True)


def _let_go(folder: Path, lock_fd: int, process_id: int) -> None:
    if os.getpid() == process_id:  # a fork of it has other ends
        _remove(folder)
        os.close(lock_fd)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + LOCK)
