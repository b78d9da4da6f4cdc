"""Allows one agent per folder: a lock that is released when its process ends, also by a crash."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import StoreError

__all__ = ["hold_lock", "lock_holder"]

NAME = "agent.lock"
ATTEMPTS = 10
BETWEEN_ATTEMPTS_S = 0.02


@contextmanager
def hold_lock(directory: Path) -> Iterator[None]:
    """Hold the lock of the agent's folder `directory` in the block.

    Raises:
        StoreError: another agent holds the lock; the message names its process.
    """
    fd = os.open(directory / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            _lock(fd)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode(errors="replace").strip()
            text = f"{directory}: an agent is already running on it, process {holder}"
            raise StoreError(text) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def lock_holder(directory: Path) -> int | None:
    """Return the process of the agent that runs on `directory`, None if there is none."""
    try:
        fd = os.open(directory / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode(errors="replace").strip()
        return int(holder) if holder.isdigit() else 0
    finally:
        os.close(fd)


def _lock(fd: int) -> None:
    """Take the lock; whoever looks at who has it holds it for a moment, too."""
    for _ in range(ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(BETWEEN_ATTEMPTS_S)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
