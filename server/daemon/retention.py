"""Retention: what ended runs leave is deleted after a time, or beyond a number of runs.

What a run has learned about people is never forgotten: its privacy ledger stays, as do its summary, its
metrics and its configuration; the server's own ledger and the audit log are not touched at all.

A run is marked first, durably, with `pruned.json` in its folder, in one transaction with a look at its
status; then its files are deleted. A marked run cannot be resumed, so that a kill between two
deletions leaves nothing that anybody relies on; the next pass deletes the rest. No link is followed.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ...config.server_config import StorageConfig
from ...errors import MeadowError, StoreError
from ...transport.durable import write_file
from ...transport.file_pool import FilePool
from ..journal.journal import Journal
from ..journal.run_table import OVER, RunRow

__all__ = [
    "MARK",
    "PrunableRun",
    "Retention",
    "due_runs",
    "folder_bytes",
    "make_headroom",
    "pruned_at",
]

MARK: Final = "pruned.json"
KEPT: Final = frozenset((MARK, "meadow.toml", "metrics.jsonl", "summary.json", "tracking.json"))
LEDGER: Final = "privacy.sqlite"
"""Stays with SQLite's files beside it, whatever they are called."""
HEADROOM_BYTES: Final = 1 << 20
FREE_BYTES_NEEDED: Final = 256 << 10
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunableRun:
    """A run that may be pruned, and how many bytes of the disk that frees; or why it cannot be."""

    run_id: int
    app: str
    status: str
    ended_at_s: float
    size_bytes: int
    problem: str = ""


def due_runs(runs: Iterable[RunRow], storage: StorageConfig, *, now_s: float) -> list[RunRow]:
    """Return the ended runs that are older than [storage] says, or more than it says; by number."""
    ended = sorted((run for run in runs if run.status in OVER), key=_ended_at_s, reverse=True)
    keep = len(ended) if storage.keep_runs is None else storage.keep_runs
    due = {run.id: run for run in ended[keep:]}
    if storage.keep_runs_days is not None:
        before_s = now_s - 86400 * storage.keep_runs_days
        due |= {run.id: run for run in ended if _ended_at_s(run) <= before_s}
    return [due[run_id] for run_id in sorted(due)]


def pruned_at(run_folder: Path) -> str | None:
    """Return when a run was pruned, as text; None if it was not."""
    try:
        return str(json.loads((run_folder / MARK).read_text())["at"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "an unknown time"


def folder_bytes(*folders: Path) -> int:
    """Return how much of the disk the files below folders take; a file with two names counts once.

    Files may come and go meanwhile. No link is followed.
    """
    return _bytes_below(folders, set())


def make_headroom(folder: Path) -> None:
    """Delete the spare files of a server's spool if the disk is full: to prune takes a few kilobytes, for
    the journal, the mark and the lines of the audit log.

    Raises:
        StoreError: it is full all the same.
    """
    if shutil.disk_usage(folder).free < HEADROOM_BYTES:
        FilePool(folder / "spool" / "spare").clear()
    if (free := shutil.disk_usage(folder).free) < FREE_BYTES_NEEDED:
        raise StoreError(
            f"the disk of {folder} has {free} bytes free, and pruning needs {FREE_BYTES_NEEDED} to begin; "
            "delete a file elsewhere on it first"
        )


class Retention:
    """Prunes runs of a server's folder, beside a daemon or without one."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._folder, self._journal = folder, journal

    def run_dir(self, run_id: int) -> Path:
        """Return a run's folder."""
        return self._folder / "runs" / str(run_id)

    def unfinished(self) -> list[int]:
        """Return the runs that are marked, and have files that are to be deleted."""
        names = [path.name for path in (self._folder / "runs").glob("[0-9]*")]
        numbers = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
        marked = [n for n in numbers if (self.run_dir(n) / MARK).is_file()]
        found = []
        for run_id in marked:
            with suppress(StoreError):  # a link
                if self._parts(run_id):
                    found.append(run_id)
        return found

    def candidates(self, runs: Iterable[RunRow]) -> list[PrunableRun]:
        """Return those of the runs that have something to delete."""
        found = []
        for run in runs:
            parts, problem = [], ""
            try:
                parts = self._parts(run.id)
            except StoreError as error:
                problem = str(error)
            if parts or problem:
                found.append(
                    PrunableRun(
                        run_id=run.id,
                        app=run.app,
                        status=run.status,
                        ended_at_s=_ended_at_s(run),
                        size_bytes=_bytes_below(parts, set()),
                        problem=problem,
                    )
                )
        return found

    def mark(self, run_id: int, *, now_s: float) -> None:
        """Decide that a run is pruned, durably, and drop its events but those of its status.

        Raises:
            MeadowError: the run is not over, or there is no such run.
            StoreError: the disk is full; the run is as it was.
        """
        with self._journal.transaction():  # nobody can resume the run until it ends
            run = self._journal.runs.get(run_id)
            if run is None:
                raise MeadowError(f"there is no run {run_id}; `meadow run list` shows them")
            if run.status not in OVER:
                raise MeadowError(
                    f"run {run_id} is {run.status}; only a run that has ended can be pruned"
                )
            folder = self.run_dir(run_id)
            with _opened(folder):
                pass
            if folder.is_dir() and not (folder / MARK).exists():
                at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
                write_file(folder / MARK, json.dumps({"at": at}).encode())
            self._journal.events.forget(run_id)
            self._journal.events.record(run_id, "pruned", "{}", now_s=now_s)

    def delete(self, run_id: int) -> None:
        """Delete what a marked run, or one without a folder, does not keep. It may be called again.

        Raises:
            StoreError: a file cannot be deleted, or a folder is a link.
        """
        with _opened(self.run_dir(run_id)) as fd:
            if fd is not None:
                for name in _prunable(fd):
                    _delete(fd, name, self.run_dir(run_id) / name)
        with _opened(self._folder / "spool") as fd:
            if fd is not None and str(run_id) in os.listdir(fd):
                _delete(fd, str(run_id), self._folder / "spool" / str(run_id))

    def _parts(self, run_id: int) -> list[Path]:
        """Return what would be deleted."""
        with _opened(self.run_dir(run_id)) as fd:
            found = [self.run_dir(run_id) / name for name in _prunable(fd)]
        spool = self._folder / "spool" / str(run_id)
        return found + ([spool] if spool.is_dir() and not spool.is_symlink() else [])


def _ended_at_s(run: RunRow) -> float:
    return run.submitted_at_s if run.finished_at_s is None else run.finished_at_s


@contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    """Yield a folder's descriptor, None if it does not exist.

    Raises:
        StoreError: it is a link, or cannot be opened.
    """
    try:
        fd = os.open(folder, _FOLDER)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        why = "is a link, which is not followed" if folder.is_symlink() else str(error.strerror)
        raise StoreError(f"{folder} {why}; nothing in it is deleted") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _prunable(fd: int | None) -> Sequence[str]:
    names = sorted(os.listdir(fd)) if fd is not None else []
    return [name for name in names if name not in KEPT and not name.startswith(LEDGER)]


def _delete(fd: int, name: str, shown: Path) -> None:
    """Delete a file, a link or a folder; of a link, only itself."""
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=fd)
        else:
            os.unlink(name, dir_fd=fd)
    except FileNotFoundError:  # another pass deletes the same
        pass
    except OSError as error:
        raise StoreError(f"{shown} cannot be deleted: {error.strerror or error}") from error


def _bytes_below(paths: Iterable[Path | str], seen: set[tuple[int, int]]) -> int:
    total, waiting = 0, list(paths)
    while waiting:
        path = waiting.pop()
        try:
            found = os.lstat(path)
            if stat.S_ISDIR(found.st_mode):
                with os.scandir(path) as entries:
                    waiting += [entry.path for entry in entries]
        except OSError:  # it is gone, or cannot be read
            continue
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
        total += found.st_blocks * 512
    return total
