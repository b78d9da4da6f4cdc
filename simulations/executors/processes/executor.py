"""The processes executor: persistent worker processes on this machine, one thread each.

Nothing that an app made is unpickled, and no tensor goes through a pipe: the broadcast lies once
a round in shared memory, and what comes back lies there too.
"""

from __future__ import annotations

from multiprocessing.connection import wait
from pathlib import Path

from ....apps.folder import App
from ....errors import AppError, RunError
from ....machine.shared_folder import SharedFolder
from ...population.clients import SimulatedClients
from ..contract import EventSink
from .group_executor import EndedTask, GroupExecutor, settings_of
from .group_files import WorkerSettings
from .group_round import GroupTask
from .worker_process import WorkerProcess

__all__ = ["ProcessesExecutor"]

LOOK_S = 1.0
"""A death is seen at once, unless something that the app started holds the worker's pipe open."""
STARTS_MAX = 3


class ProcessesExecutor(GroupExecutor):
    """Runs an app's clients on `workers` processes; see `GroupExecutor`.

    Attributes:
        name: "processes" where a worker runs its clients one by one; else its inner executor's name.
    """

    def __init__(
        self,
        app: App,
        clients: SimulatedClients,
        *,
        workers: int,
        combine: bool,
        inner: str = "sequential",
        sink: EventSink,
    ) -> None:
        """Start the processes; they load the app meanwhile.

        With `combine`, a train broadcast gets one reply, which stands for the whole cohort.

        Raises:
            StoreError: there is no place for the files that processes share.
        """
        folder = SharedFolder()
        pool = _ProcessPool(settings_of(app, clients, inner), workers)
        super().__init__(pool, clients, folder, combine=combine, inner=inner, sink=sink)
        self.name = "processes" if inner == "sequential" else inner
        self._processes = pool

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return self._processes.pids


class _ProcessPool:
    def __init__(self, settings: WorkerSettings, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be >= 1, got {workers}")
        self._settings = settings
        self.workers = workers
        self._failed_starts = 0
        self._processes = [WorkerProcess(settings) for _ in range(workers)]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def begin(self, shared: Path) -> None:
        """Nothing is to be done: every worker can read the folder."""

    def has_room(self) -> bool:
        return any(_is_idle(process) for process in self._processes)

    def submit(self, task: GroupTask) -> None:
        next(process for process in self._processes if _is_idle(process)).submit(task)

    def wait(self) -> list[EndedTask]:
        ready = wait([process.connection for process in self._processes], timeout=LOOK_S)
        return [
            ended
            for process in list(self._processes)
            if process.connection in ready or process.is_gone()
            for ended in self._hear(process)
        ]

    def close(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.connection.close()  # all at once, then one after the other
        for process in processes:
            process.stop()

    def _hear(self, process: WorkerProcess) -> list[EndedTask]:
        answer = process.receive()
        if answer is None:
            return self._replace(process)
        problem = answer.get("problem", "")
        if not process.ready:
            if problem:
                raise AppError(problem)
            process.ready, self._failed_starts = True, 0
            return []
        task, process.task = process.task, None
        assert task is not None, "a worker answers when it was asked"
        return [EndedTask(task=task, problem=problem)]

    def _replace(self, process: WorkerProcess) -> list[EndedTask]:
        cause = process.stop()
        if not process.ready:
            self._failed_starts += 1
            if self._failed_starts >= STARTS_MAX:
                raise RunError(
                    f"worker processes cannot be started: {STARTS_MAX} times in a row, one {cause} "
                    "while it loaded the app; run with fewer workers, or the sequential executor"
                )
        self._processes[self._processes.index(process)] = WorkerProcess(self._settings)
        return [EndedTask(task=process.task, lost=cause)] if process.task is not None else []


def _is_idle(process: WorkerProcess) -> bool:
    return process.ready and process.task is None
