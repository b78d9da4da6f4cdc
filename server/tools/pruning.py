"""`meadow server prune`: retention at once, beside a daemon or without one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing

from ...config.server_config import StorageConfig
from ...errors import MeadowError
from ..daemon.retention import PrunableRun, Retention, due_runs, make_headroom
from ..daemon.server_dir import ServerFolder
from ..journal.journal import Journal
from ..journal.run_table import OVER

__all__ = ["prune_now"]


def prune_now(
    server_folder: ServerFolder, asked: Collection[int] | None, *, dry_run: bool, now_s: float
) -> Iterator[PrunableRun]:
    """Yield what is deleted, or would be, one run after another; `asked` are runs that are pruned in
    place of those that are due.

    Raises:
        MeadowError: a run that was asked for is not over, or does not exist.
        StoreError: the disk fails, or a run's folder is a link.
    """
    if not dry_run:
        make_headroom(server_folder.folder)
    with closing(Journal(server_folder.folder / "journal.sqlite")) as journal:
        retention = Retention(server_folder.folder, journal)
        runs = {run.id: run for run in journal.runs.all()}
        for run_id in asked or ():
            if run_id not in runs:
                raise MeadowError(f"there is no run {run_id}; `meadow run list` shows them")
            if (status := runs[run_id].status) not in OVER:
                raise MeadowError(
                    f"run {run_id} is {status}; only a run that has ended can be pruned"
                )
        storage = server_folder.config.storage or StorageConfig()
        due = [runs[n] for n in asked] if asked else due_runs(runs.values(), storage, now_s=now_s)
        unfinished = [runs[n] for n in retention.unfinished() if n in runs and runs[n] not in due]
        for each in retention.candidates([*unfinished, *due]):
            if not dry_run and not each.problem:
                about = {"run": each.run_id, "app": each.app, "bytes": each.size_bytes}
                with server_folder.audited("server prune", **about):
                    retention.mark(each.run_id, now_s=now_s)
                    retention.delete(each.run_id)
            yield each
