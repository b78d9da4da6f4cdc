"""The partial file of a blob: under a name of its own, locked, and kept across restarts."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from .durable import Writeback, sync_folder, write_all
from .file_pool import FilePool
from .tensors import checksum

__all__ = ["Part"]

NAMED_EVERY_BYTES: Final = 16 << 20
_OVER: Final = ".over"


class Part:
    """An open part, to be closed; one process at a time has it.

    `STEM.part` contains only received bytes. A spare file that is being overwritten keeps its old length:
    its name, `STEM.N.over`, records that `N` bytes of it were received.

    Attributes:
        received_bytes: how many bytes were received.
        crc32: their checksum.
    """

    def __init__(
        self, folder: Path, stem: str, *, size_bytes: int, file_pool: FilePool | None
    ) -> None:
        """Open the part of a blob of `size_bytes`, which takes time if much of it was received.

        Raises:
            BlockingIOError: another process has it open.
            OSError: the disk fails.
        """
        self._folder = folder
        self._stem = stem
        self._path = folder / f"{stem}.part"
        self._named_bytes = self.received_bytes = self.crc32 = 0
        self._recover()
        fd = None
        if file_pool is not None and not self._path.exists():
            fd = file_pool.take(self._over(0), size_bytes)
        if fd is not None:
            self._fd, self._path = fd, self._over(0)
        else:
            self._fd = self._open(size_bytes)
        self._is_over = fd is not None
        self._writeback = Writeback(self._fd, self.received_bytes)

    @property
    def is_open(self) -> bool:
        """Whether it can still be written to."""
        return self._fd >= 0

    def append(self, data: bytes | memoryview, crc32: int, *, durable: bool) -> None:
        """Write more, with which the checksum is `crc32`; `durable` says that it will be synced.

        Raises:
            OSError: the disk is full or fails; the part is as before.
        """
        end = self.received_bytes + len(data)
        try:
            write_all(self._fd, data)
            if self._is_over and end - self._named_bytes >= NAMED_EVERY_BYTES:
                self._rename(self._over(end))
                self._named_bytes = end
        except OSError:
            os.ftruncate(self._fd, self.received_bytes)
            os.lseek(self._fd, self.received_bytes, os.SEEK_SET)
            raise
        self.received_bytes, self.crc32 = end, crc32
        if durable:
            self._writeback.wrote(end)

    def keep(self, path: Path, *, durable: bool) -> None:
        """Give the whole file its name, and close it.

        Raises:
            OSError: the disk fails.
        """
        if durable:
            os.fsync(self._fd)
        fcntl.flock(self._fd, fcntl.LOCK_SH)  # whoever finds it there may read it at once
        self._rename(path)
        if durable:
            sync_folder(self._folder)
        self._close()

    def drop(self) -> None:
        """Delete the part, and close it."""
        if self.is_open:
            self._path.unlink(missing_ok=True)
            self.received_bytes = self.crc32 = 0
            self._close()

    def close(self) -> None:
        """Close the part; the next receiver resumes it."""
        if self.is_open:
            if self._is_over:
                with suppress(OSError):  # its folder may be gone, and it with it
                    os.ftruncate(self._fd, self.received_bytes)
                    self._rename(self._folder / f"{self._stem}.part")
            self._close()

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def _rename(self, path: Path) -> None:
        os.rename(self._path, path)
        self._path = path

    def _over(self, received_bytes: int) -> Path:
        return self._folder / f"{self._stem}.{received_bytes}{_OVER}"

    def _recover(self) -> None:
        """Convert a spare file that a killed process was overwriting into a plain part."""
        for over in self._folder.glob(f"{self._stem}.*{_OVER}"):
            fd = os.open(over, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                named = over.name.removeprefix(f"{self._stem}.").removesuffix(_OVER)
                os.ftruncate(fd, int(named))
                os.rename(over, self._path)
            finally:
                os.close(fd)

    def _open(self, size_bytes: int) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = checksum(self._path)
            if there.size_bytes > size_bytes:  # of another blob, once
                os.ftruncate(fd, 0)
            else:
                self.crc32, self.received_bytes = there.crc32, there.size_bytes
            os.lseek(fd, self.received_bytes, os.SEEK_SET)
        except BaseException:
            os.close(fd)
            raise
        return fd
