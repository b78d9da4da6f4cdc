"""A disk that forgets what was not synced: what is left of a folder after a power cut."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


class PowerCut:
    """Notes every `os.fsync` of this process, and gives the folder as only those left it.

    A file has the bytes that it had when it was last synced, or none; a folder has the names that
    it had then. Databases are left as they are: SQLite syncs them by itself.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is in `root` now is durable."""
        self.root = root
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        self._bytes: dict[int, bytes] = {}
        self._held: list[int] = []
        self.on_sync: Callable[[], None] = lambda: None
        for folder, _, files in os.walk(root):
            for path in [Path(folder), *(Path(folder, name) for name in files)]:
                self._note(os.open(path, os.O_RDONLY))
        sync = os.fsync

        def noted(fd: int) -> None:
            sync(fd)
            self._note(os.dup(fd))
            look, self.on_sync = self.on_sync, lambda: None  # who looks may write by themselves
            look()
            self.on_sync = look

        monkeypatch.setattr(os, "fsync", noted)

    def close(self) -> None:
        """Let go of the files."""
        while self._held:
            os.close(self._held.pop())

    def image(self, target: Path) -> Path:
        """Make `target` what is left of the folder if the power is cut now."""
        shutil.rmtree(target, ignore_errors=True)
        self._make(self.root.stat().st_ino, target)
        for path in self.root.rglob("*.sqlite*"):
            copy = target / path.relative_to(self.root)
            if copy.parent.is_dir():
                shutil.copyfile(path, copy)
        return target

    def _note(self, fd: int) -> None:
        """Take down what is durable; the descriptor keeps the inode's number from coming again."""
        self._held.append(fd)
        path = Path(f"/proc/self/fd/{fd}").resolve()
        inode = os.fstat(fd).st_ino
        if path.is_dir():
            with os.scandir(path) as entries:
                self._names[inode] = {
                    each.name: (each.inode(), each.is_dir(follow_symlinks=False))
                    for each in entries
                }
        else:
            size = os.fstat(fd).st_size
            again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
            try:
                self._bytes[inode] = os.pread(again, size, 0)
            finally:
                os.close(again)

    def _make(self, inode: int, target: Path) -> None:
        target.mkdir(parents=True)
        for name, (inner, is_folder) in self._names.get(inode, {}).items():
            if is_folder:
                self._make(inner, target / name)
            elif ".sqlite" not in name:
                (target / name).write_bytes(self._bytes.get(inner, b""))
