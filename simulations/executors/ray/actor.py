"""What runs in a Ray actor: the same as in a worker process, on a machine that may be another.

Files come and go as arrays of bytes, through Ray's object store.
"""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....apps.folder import content_hash, unpack
from ....errors import MeadowError, StoreError
from ....machine.process_limits import allow_many_files, keep_freed_memory
from ....machine.shared_folder import SharedFolder
from ..processes.group_files import WorkerSettings

__all__ = ["Files", "GroupActor", "read_folder", "write_folder"]

Files = Mapping[str, NDArray[np.uint8]]
"""The files of a folder, by name."""


class GroupActor:
    """Loads an app and runs groups of its clients; every answer begins with what went wrong."""

    def __init__(self, settings: Mapping[str, Any], archive: bytes) -> None:
        """`archive` is the app's folder, for a machine that does not have it."""
        self._settings = settings
        self._archive = archive
        self._shared: tuple[str, Path] | None = None

    def load(self) -> tuple[str, int]:
        """Load the app; return ("", process id) if that went well."""
        from ..processes.group_runner import GroupRunner  # it imports what makes this executor

        keep_freed_memory()
        allow_many_files()
        try:
            self._folder = SharedFolder()
            app = {"folder": str(self._app_folder())}
            self._runner = GroupRunner(WorkerSettings(**{**self._settings, **app}))
        except Exception as error:  # an app may raise anything while it is imported
            return _sentence(error), os.getpid()
        return "", os.getpid()

    def run(self, round_id: str, shared: Files, inbox: Files) -> tuple[str, Files]:
        """Run a group; return ("", the files of its outbox) if that went well."""
        inside, outside = self._folder.path / "in", self._folder.path / "out"
        try:
            write_folder(inside, inbox)
            outside.mkdir()
            self._runner.run(self._shared_folder(round_id, shared), inside, outside)
            return "", read_folder(outside)
        except Exception as error:  # not the app's: that is an error reply
            traceback.print_exc()
            return _sentence(error), {}
        finally:
            shutil.rmtree(inside, ignore_errors=True)
            shutil.rmtree(outside, ignore_errors=True)

    def close(self) -> None:
        """Remove all files."""
        self._folder.close()

    def _app_folder(self) -> Path:
        """Return the app's own folder if this machine has it, or unpack it."""
        folder, wanted = Path(self._settings["folder"]), self._settings["sha256"]
        try:
            if content_hash(folder) == wanted and any(folder.iterdir()):
                return folder
        except (OSError, MeadowError):
            pass  # another machine's path
        copy: Path = self._folder.path / str(wanted)
        unpack(self._archive, copy)
        return copy

    def _shared_folder(self, round_id: str, shared: Files) -> Path:
        """Return this machine's copy of what a round's groups share; one round's is kept."""
        if self._shared is None or self._shared[0] != round_id:
            if self._shared is not None:
                shutil.rmtree(self._shared[1], ignore_errors=True)
            folder = self._folder.path / f"shared-{round_id}"
            self._shared = None
            write_folder(folder, shared)
            self._shared = (round_id, folder)
        return self._shared[1]


def read_folder(folder: Path) -> Files:
    """Return the files in a folder.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        return {path.name: np.fromfile(path, np.uint8) for path in sorted(folder.iterdir())}
    except OSError as error:
        raise StoreError(f"{folder} cannot be read: {error.strerror}") from error


def write_folder(folder: Path, files: Files) -> None:
    """Make a folder of these files, or fill an empty one.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / Path(name).name).write_bytes(content.data)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from error


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, MeadowError) else f"{type(error).__name__}: {error}"
