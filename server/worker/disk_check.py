"""Says how much disk a run will take, before it takes it, and ends one for which there is too little."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...config.sections.model import Config
from ...config.server_config import StorageConfig
from ...errors import StoreError
from ...reports.sentences import amount
from ...run.disk_needs import disk_needs
from ...strategies.algorithms.algorithm import Params, State
from ...transport import fleet_pb2 as pb
from ..daemon.retention import folder_bytes
from ..daemon.server_dir import ServerFolder

__all__ = ["DiskCheck"]

SAID_BYTES_MIN: Final = 100_000_000
"""A run that takes less is not told of, nor refused."""


class DiskCheck:
    """Asked before each round: a `Room`.

    It counts what this run takes; other runs under way may take theirs of the same disk.
    """

    def __init__(
        self,
        config: Config | None,
        start: pb.WorkerStart,
        *,
        relay_of: Callable[[int], int],
        emit: Callable[[str, Mapping[str, Any]], None],
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        """`config` is None for an app of Flower's, which is not asked about. `relay_of` returns the relay that a
        client is behind, 0 if none."""
        self._config, self._relay_of, self._emit, self._free_bytes = (
            config,
            relay_of,
            emit,
            free_bytes,
        )
        self._run_id, self._run_dir = start.run_id, Path(start.run_dir)
        self._spool, self._server_dir = (
            Path(start.spool_dir).parents[1],
            Path(start.run_dir).parents[1],
        )
        self._said_bytes = 0

    def __call__(self, state: State, sent: Params, cohort: Sequence[int]) -> None:
        """Say what rounds with such a cohort take, if that is more than was said.

        Raises:
            StoreError: the disk has less left, or the server's quota of a run that begins.
        """
        if self._config is None:
            return
        relays = {self._relay_of(client) for client in cohort} - {0}
        direct = sum(not self._relay_of(client) for client in cohort)
        needs = disk_needs(self._config, state, sent=sent, clients=direct, relays=len(relays))
        if needs.server_bytes <= max(self._said_bytes, SAID_BYTES_MIN - 1):
            return
        self._said_bytes = needs.server_bytes
        missing = max(0, needs.server_bytes - self._held_bytes())
        free = self._free_bytes(self._server_dir)
        said = {"server_bytes": needs.server_bytes, "client_bytes": needs.client_bytes}
        self._emit("disk_needed", {**said, "free_bytes": free})
        takes = (
            f"{len(cohort)} clients with a model of this size take up to {amount(needs.server_bytes)} of the "
            f"server's disk, {amount(missing)} more than the run has now"
        )
        remedy = (
            "make room (`meadow server prune` deletes what ended runs have left) or choose a smaller run.cohort, "
            f"then `meadow run resume {self._run_id}`"
        )
        if missing > free:
            raise StoreError(
                f"{takes}, and {amount(free)} are free at {self._server_dir}: {remedy}"
            )
        quota = (ServerFolder(self._server_dir).config.storage or StorageConfig()).bytes_max
        if quota is None or state.round:
            return
        if (used := folder_bytes(self._server_dir)) + missing > quota:
            raise StoreError(
                f"{takes}, and the server's folder has {amount(used)} of its quota of {amount(quota)}, "
                f"storage.bytes_max in server.toml: raise it, or {remedy}"
            )

    def _held_bytes(self) -> int:
        """Return what the run's files take now, and those that its replies will be written over."""
        spool = (self._spool / str(self._run_id), self._spool / "spare")
        return folder_bytes(self._run_dir, *spool)
