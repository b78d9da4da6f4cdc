"""The owner's configuration and installed apps, read again after each change on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...config.client_config import APPROVED_FILE, ClientConfig, load_client_config
from ...errors import AppError, MeadowError

__all__ = ["Owner", "OwnersFile", "Signature", "signature_of"]

Signature = tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class _HashedApp:
    signature: Signature
    sha256: str


class OwnersFile:
    """client.toml."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "client.toml"
        self._read: tuple[Signature, ClientConfig] | None = None

    def config(self) -> ClientConfig:
        """Return the present configuration in the owner's file.

        Raises:
            ConfigError: the file is missing or wrong.
        """
        signature = signature_of(self.path, self.path.parent / "approved" / APPROVED_FILE)
        if self._read is None or self._read[0] != signature:
            self._read = (signature, load_client_config(self.path))
        return self._read[1]


class Owner:
    """client.toml and the app folders that it names."""

    def __init__(self, directory: Path, content_hash: Callable[[Path], str]) -> None:
        self._file = OwnersFile(directory)
        self._content_hash = content_hash
        self._hashes: dict[Path, _HashedApp] = {}

    @property
    def directory(self) -> Path:
        """The agent's folder."""
        return self._file.path.parent

    def config(self) -> ClientConfig:
        """As `OwnersFile.config`."""
        return self._file.config()

    def folder(self, app: str) -> Path | None:
        """Return the folder of an installed app, None if it is not installed."""
        path = self.config().apps.get(app)
        return None if path is None else Path(path)

    def sha256(self, app: str) -> str | None:
        """Return an installed app's content hash, None if it is not installed.

        Raises:
            AppError: the folder is missing or is not an app.
        """
        folder = self.folder(app)
        if folder is None:
            return None
        signature = signature_of(*sorted(_files_in(folder)))
        known = self._hashes.get(folder)
        if known is None or known.signature != signature:
            known = _HashedApp(signature, self._content_hash(folder))
            self._hashes[folder] = known
        approved = self.config().approved.get(app)
        if approved is not None and approved != known.sha256:
            raise AppError(
                f"{folder} was changed since it was approved: `meadow client apps refuse {app} "
                f"{approved[:12]}` deletes it"
            )
        return known.sha256

    def apps(self) -> dict[str, str | MeadowError]:
        """Return every installed app's hash, or its error."""
        found: dict[str, str | MeadowError] = {}
        for app in self.config().apps:
            try:
                found[app] = self.sha256(app) or ""
            except MeadowError as error:
                found[app] = error
        return found


def _files_in(folder: Path | str) -> Iterator[str]:
    """Yield the files of a folder and its subfolders; an unreadable folder has none."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files_in(entry.path)
            elif entry.is_file():
                yield entry.path


def signature_of(*paths: Path | str) -> Signature:
    """Return the names, sizes and modification times of files, to detect changes."""
    found = []
    for path in paths:
        try:
            status = os.stat(path)
            found.append((str(path), status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            found.append((str(path), -1, 0))
    return tuple(found)
