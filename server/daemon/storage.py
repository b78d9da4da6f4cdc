"""What the server's folder holds, while the daemon runs: its quota, and what [storage] lets go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ...config.server_config import StorageConfig
from ...errors import LimitError, MeadowError
from ...reports.sentences import amount
from ..journal.journal import Journal
from .audit_trail import AuditTrail
from .retention import Retention, due_runs, folder_bytes, make_headroom
from .server_dir import ServerFolder
from .threads import JournalThread

__all__ = ["Storage"]

LOG = logging.getLogger("meadow.server")
MEASURED_EVERY_S = 60.0
PRUNED_EVERY_S = 600.0


class Storage:
    """Measures the folder, and prunes runs."""

    def __init__(
        self,
        server_folder: ServerFolder,
        journal: Journal,
        thread: JournalThread,
        audit: AuditTrail,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._folder = server_folder.folder
        self._config = server_folder.config.storage or StorageConfig()
        self._journal, self._thread, self._audit, self._clock = journal, thread, audit, clock
        self._retention = Retention(self._folder, journal)
        self.used_bytes: int | None = None
        """What the folder held when it was measured last; None if it has no quota."""

    async def run(self) -> None:
        """Measure and prune until it is cancelled."""
        await asyncio.gather(
            _again(MEASURED_EVERY_S, self.measure), _again(PRUNED_EVERY_S, self.prune)
        )

    async def measure(self) -> None:
        """Measure the folder, if it has a quota."""
        if self._config.bytes_max is not None:
            self.used_bytes = await asyncio.to_thread(folder_bytes, self._folder)

    async def require_room(self) -> None:
        """Check that the folder may grow by another run.

        Raises:
            LimitError: its quota is used up.
        """
        await self.measure()
        quota = self._config.bytes_max
        if quota is not None and self.used_bytes is not None and self.used_bytes >= quota:
            raise LimitError(
                f"the server's folder has {amount(self.used_bytes)}, and its quota is {amount(quota)}: no "
                "run begins until there is room, and runs under way go on; `meadow server prune` deletes what "
                "ended runs have left, and storage.bytes_max in server.toml raises the quota"
            )

    async def prune(self) -> None:
        """Delete what is due, and what an earlier pass has left."""
        for run_id in await asyncio.to_thread(self._retention.unfinished):
            await asyncio.to_thread(self._retention.delete, run_id)
        runs = await self._thread(self._journal.runs.all)
        due = due_runs(runs, self._config, now_s=self._clock())
        candidates = await asyncio.to_thread(self._retention.candidates, due)
        if candidates:
            await asyncio.to_thread(make_headroom, self._folder)
        for each in candidates:
            if each.problem:
                LOG.error("run %d is due, and is not pruned: %s", each.run_id, each.problem)
                continue
            what = {"run": each.run_id, "app": each.app, "bytes": each.size_bytes}
            async with self._audit.action(
                who="daemon", role="local", call="server prune", what=what, address=""
            ):
                await self._thread(self._retention.mark, each.run_id, now_s=self._clock())
                await asyncio.to_thread(self._retention.delete, each.run_id)


async def _again(pause_s: float, chore: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await chore()
        except (MeadowError, OSError) as error:
            LOG.error("%s; it is tried again in %.0f s", error, pause_s)
        except Exception:  # a defect must not end the daemon, nor go unseen
            LOG.exception("the server's storage")
        await asyncio.sleep(pause_s)
