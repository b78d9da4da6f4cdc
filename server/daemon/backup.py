"""`meadow server backup` and `restore`: a server's folder in one file, made while the daemon runs.

The file is a tar. Its last member is a manifest with the size and SHA-256 of every other one, so that
a file that was cut or changed is noticed. What it holds is a state that a killed daemon could have
left, from which a daemon goes on: the journal is copied first, then each run's files as they are
at one moment, then the ledgers, which may count more than was released, but never less.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from ...config.load import load_config
from ...errors import ConfigError, DamageError, MeadowError, StoreError
from ...transport.database import Salvage
from ...transport.durable import make_folder, replacing, sync_folder
from ..journal.journal import Journal
from ..journal.run_table import RunRow
from .check import DAMAGED_NAME
from .server_dir import ServerFolder

__all__ = ["Backup", "back_up", "restore"]

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
MANIFEST_BYTES_MAX: Final = 64 << 20
STAGING: Final = ".backup"
LEFT_OUT: Final = frozenset(("spool", "server.lock", "listening.json", DAMAGED_NAME, STAGING))
"""What a daemon makes anew, and what nobody goes on with."""
LEDGER: Final = "ledger"
"""The mark beside privacy.sqlite: a mark that is newer than its ledger is refused, an older one is not."""
SQLITE: Final = b"SQLite format 3\0"
TRIES_MAX: Final = 20
UNFINISHED: Final = ("arriving", "queued", "running", "failed", "stopped")
"""The states of runs that would go on, or can be resumed."""
NUMBERS_SKIPPED: Final = 1000
"""Runs and sites of a restored server begin so much later: clients keep what belongs to the runs since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What is in a backup.

    Attributes:
        made_at: when it was begun.
        files: how many files it has, and `size_bytes` of them together.
        abandoned: the private runs that were not finished: a restored server does not go on with
            them, as what was released since is not in its ledger.
    """

    made_at: datetime
    files: int
    size_bytes: int
    abandoned: tuple[int, ...]


def back_up(server_folder: ServerFolder, file: Path, *, now: datetime) -> Backup:
    """Write all of a server's folder but what is in transit to `file`, which only its owner can read.

    Guarantees: `file` is complete, or as it was. A daemon may run meanwhile, and is not delayed.
    Raises:
        ConfigError: `file` is in the folder itself.
        StoreError: the disk is full, or another backup of the folder is under way.
    """
    folder = server_folder.folder
    if file.resolve().is_relative_to(folder):
        raise ConfigError(f"{file} is in the server's own folder, and would be lost with it")
    recorded = server_folder.audited("server backup", file=str(file))
    with recorded, _staging(folder) as staged, replacing(file, fsync=True, mode=0o600) as fd:
        abandoned = _stage(folder, staged)
        written: dict[str, Any] = {}
        links: dict[str, str] = {}
        names: dict[tuple[int, int], str] = {}
        with os.fdopen(os.dup(fd), "wb") as out, tarfile.open(fileobj=out, mode="w|") as tar:
            for path in sorted(each for each in staged.rglob("*") if each.is_file()):
                name = path.relative_to(staged).as_posix()
                status = path.stat()
                first = names.setdefault((status.st_dev, status.st_ino), name)
                if first != name:
                    links[name] = first
                    continue
                with path.open("rb") as content:
                    info = tarfile.TarInfo(name)
                    info.size, info.mode, info.mtime = (
                        status.st_size,
                        status.st_mode,
                        status.st_mtime,
                    )
                    hashed = _Hashed(content)
                    tar.addfile(info, hashed)  # so many bytes, also of a file that grows
                written[name] = {"bytes": info.size, "sha256": hashed.sha256}
            text = json.dumps(
                {
                    "format": FORMAT,
                    "made_at": now.isoformat(),
                    "abandoned": abandoned,
                    "read_this": f"Unpack with `meadow server restore`. {_words(abandoned)}",
                    "files": written,
                    "links": links,
                },
                indent=1,
            ).encode()
            info = tarfile.TarInfo(MANIFEST)
            info.size, info.mode = len(text), 0o600
            tar.addfile(info, io.BytesIO(text))
    sizes = [each["bytes"] for each in written.values()]
    return Backup(made_at=now, files=len(sizes), size_bytes=sum(sizes), abandoned=tuple(abandoned))


def restore(file: Path, folder: Path, *, now: datetime) -> Backup:
    """Make a server's folder of a backup. Runs that must not go on are abandoned in its journal.

    Guarantees: `folder` is complete when it appears.
    Raises:
        ConfigError: the folder exists already and is not empty.
        DamageError: the file is no backup, was cut, or is not as it was written.
        StoreError: the disk is full.
    """
    folder = folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already; restore into a new folder")
    make_folder(folder.parent)
    partial = folder.with_name(f".{folder.name}.restoring")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(mode=0o700)
        manifest = _unpacked(file, partial)
        for name in ("spool", "runs", "ca"):
            make_folder(partial / name)
        with ServerFolder(partial).audited("server restore", made_at=manifest["made_at"]):
            _settle(partial, manifest, now)
        for path, _, _ in os.walk(partial):
            sync_folder(Path(path))
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise StoreError(f"{file} cannot be restored to {folder}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sizes = [each["bytes"] for each in manifest["files"].values()]
    return Backup(
        made_at=datetime.fromisoformat(manifest["made_at"]),
        files=len(sizes),
        size_bytes=sum(sizes),
        abandoned=tuple(manifest["abandoned"]),
    )


# ------------------------------------------------------------------ what is copied


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """Yield an empty folder for links and copies, on the same disk; it is removed in the end."""
    place = folder / STAGING
    make_folder(place, mode=0o700)
    lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(f"another backup of {folder} is under way") from None
        staged = place / "files"
        shutil.rmtree(staged, ignore_errors=True)  # of a killed one
        staged.mkdir()
        try:
            yield staged
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    finally:
        os.close(lock)


def _stage(folder: Path, staged: Path) -> list[int]:
    """Put links to a folder's files, and copies of its databases; return the runs to be abandoned."""
    _copy_database(folder / "journal.sqlite", staged / "journal.sqlite")
    with closing(Journal(staged / "journal.sqlite")) as journal:
        runs = {str(run.id): run for run in journal.runs.all()}
    _without_log(staged / "journal.sqlite")
    for name in runs:
        if (folder / "runs" / name).is_dir():
            _link_all(folder, PurePosixPath("runs", name), staged)
    abandoned = [
        run.id
        for name, run in runs.items()
        if run.status in UNFINISHED and _is_private(staged / "runs" / name, run)
    ]
    others = sorted(each.name for each in folder.iterdir() if each.name not in {*LEFT_OUT, "runs"})
    others.sort(key=lambda name: name != LEDGER)  # before what it marks
    for name in others:
        if not (staged / name).exists():
            _link_all(folder, PurePosixPath(name), staged)
    return abandoned


def _link_all(folder: Path, part: PurePosixPath, staged: Path) -> None:
    """Link the files below a part of the folder as they are at one moment, and copy its databases
    after them: a ledger has at least what a checkpoint beside it counts.

    A file that is replaced meanwhile keeps the linked content.

    Raises:
        StoreError: files come and go all the time.
    """
    source, target = folder / part, staged / part
    for _ in range(TRIES_MAX):
        try:
            databases = []
            for path in _files_below(source):
                place = target / path.relative_to(source) if source.is_dir() else target
                place.parent.mkdir(parents=True, exist_ok=True)
                if _is_database(path):
                    databases.append((path, place))
                else:
                    os.link(path, place, follow_symlinks=False)
            for path, place in databases:
                _copy_database(path, place)
            return
        except FileNotFoundError:  # replaced between two steps: begin again
            shutil.rmtree(target, ignore_errors=True)
        except OSError as error:
            raise StoreError(f"{source} cannot be copied: {error}") from error
    raise StoreError(f"the files of {source} change all the time; try again")


def _files_below(source: Path) -> list[Path]:
    found = [source] if source.is_file() else sorted(source.rglob("*"))
    return [
        path
        for path in found
        if path.is_file()
        and not path.is_symlink()
        and not (path.name.startswith(".") and path.name.endswith(".tmp"))
        and not path.name.endswith((".sqlite-wal", ".sqlite-shm"))
    ]


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def _copy_database(source: Path, target: Path) -> None:
    """Copy what the last transaction left, while others may write.

    Raises:
        StoreError: it cannot be read.
    """
    if not source.exists():
        raise FileNotFoundError(source)
    try:
        with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
            old.backup(new)
    except sqlite3.Error as error:
        raise StoreError(f"{source} cannot be copied: {error}") from error
    target.chmod(0o600)
    _without_log(target)


def _without_log(database: Path) -> None:
    """Bring what is in the write-ahead log into the file itself."""
    with closing(sqlite3.connect(database)) as found:
        found.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for end in ("-wal", "-shm"):
        database.with_name(database.name + end).unlink(missing_ok=True)


def _is_private(run_folder: Path, run: RunRow) -> bool:
    """Whether a run has, or may have, a privacy ledger."""
    if (run_folder / "privacy.sqlite").exists():
        return True
    try:
        settings = json.loads(run.settings)
        config = load_config(run_folder / "app", environ={}, overrides=settings)
    except (MeadowError, ValueError):
        return run.sha256 != ""  # what never began released nothing
    return config.privacy.differential_privacy.enabled


class _Hashed:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content, self._hash = content, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._content.read(size)
        self._hash.update(data)
        return data

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


# ------------------------------------------------------------------ what is restored


def _unpacked(file: Path, folder: Path) -> Mapping[str, Any]:
    """Unpack a backup's files, and return its manifest.

    Raises:
        DamageError: it is not as it was written.
    """
    found: dict[str, tuple[int, str]] = {}
    text = None
    try:
        with tarfile.open(file, mode="r|") as tar:
            for member in tar:
                if text is not None or not member.isreg() or not _is_inside(member.name):
                    raise _damaged(file, f"it has {member.name!r:.80}, which no backup has")
                content = tar.extractfile(member)
                assert content is not None
                if member.name == MANIFEST:
                    if member.size > MANIFEST_BYTES_MAX:
                        raise _damaged(file, f"its manifest has {member.size} bytes")
                    text = content.read()
                    continue
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                hashed = _Hashed(content)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                with os.fdopen(os.open(path, flags, member.mode & 0o700), "wb") as out:
                    shutil.copyfileobj(hashed, out, 1 << 20)
                    out.flush()
                    os.fsync(out.fileno())
                found[member.name] = (path.stat().st_size, hashed.sha256)
    except (tarfile.TarError, EOFError) as error:
        raise _damaged(file, str(error)) from error
    except FileExistsError as error:
        raise _damaged(file, f"it has {error.filename} twice") from error
    manifest = _checked(file, text, found)
    for name, first in manifest["links"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / first, folder / name)
    return manifest


def _checked(
    file: Path, text: bytes | None, found: Mapping[str, tuple[int, str]]
) -> Mapping[str, Any]:
    if text is None:
        raise _damaged(file, "it ends before its manifest")
    try:
        manifest = json.loads(text)
        if manifest["format"] != FORMAT:
            raise DamageError(
                f"{file} is a backup of another version of Meadow (format {manifest['format']!r:.20}); "
                "restore it with that one"
            )
        datetime.fromisoformat(manifest["made_at"])
        [int(each) for each in manifest["abandoned"]]
        listed = {
            str(name): (int(each["bytes"]), str(each["sha256"]))
            for name, each in manifest["files"].items()
        }
        links = dict(manifest["links"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(file, f"its manifest cannot be read: {error!r:.80}") from error
    for name in sorted(listed.keys() | found.keys()):
        if listed.get(name) != found.get(name):
            raise _damaged(file, f"{name!r} is not as it was written")
    for name, first in links.items():
        if name in found or first not in found or not _is_inside(name):
            raise _damaged(file, f"{name!r} is not as it was written")
    made: Mapping[str, Any] = manifest
    return made


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\\" not in name


def _damaged(file: Path, what: str) -> DamageError:
    return DamageError(f"{file} is no whole backup of a server: {what}; take an earlier one")


def _settle(folder: Path, manifest: Mapping[str, Any], now: datetime) -> None:
    """Let a restored server go on without what happened since: rounds under way begin anew, runs whose
    later releases are not in its ledger are over, and no number is given twice."""
    made_at = datetime.fromisoformat(manifest["made_at"]).astimezone(UTC)
    cause = (
        f"restored from a backup of {made_at:%Y-%m-%d %H:%M}Z, which lacks what the run released since; "
        "submit the app again"
    )
    with closing(Journal(folder / "journal.sqlite")) as journal:
        for run_id in manifest["abandoned"]:
            journal.runs.status(int(run_id), "abandoned", cause=cause, now_s=now.timestamp())
        latest = {"runs": 0, "sites": 0}
        for run in journal.runs.all():
            journal.steps.forget(run.id, None)
            latest["runs"] = run.id
        for site in journal.sites.all():
            latest["sites"] = max(latest["sites"], site.node_id)
        for table, number in latest.items():
            nothing = Salvage(rows=[], lost=[])
            journal.take_over(table, nothing, numbers=[number + NUMBERS_SKIPPED])
        detail = {"made_at": manifest["made_at"], "abandoned": manifest["abandoned"]}
        journal.events.record(0, "restored", json.dumps(detail), now_s=now.timestamp())


def _words(abandoned: list[int]) -> str:
    ends = ", ".join(str(each) for each in abandoned)
    return (
        "It has the authority's secret key: keep it under lock. Clients that were admitted later are "
        "unknown to a restored server, and those that were revoked later are admitted again. The "
        "ledger of all runs (privacy.sqlite) lacks what was released later."
        + (f" These private runs were not finished, and do not go on: {ends}." if ends else "")
    )
