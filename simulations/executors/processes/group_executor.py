"""Runs groups of clients on workers, whatever these are: the part that all such executors share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from flwr.app import Message

from ....apps.folder import App
from ....errors import RunError
from ....machine.process_limits import allow_many_files
from ....machine.shared_folder import SharedFolder
from ...population.clients import SimulatedClients
from ..contract import EventSink
from .group_files import WorkerSettings
from .group_round import GroupRound, GroupTask
from .groups import ClientTimes

__all__ = ["EndedTask", "GroupExecutor", "Pool", "settings_of"]

GROUPS_PER_WORKER = {"sequential": 4}
"""More groups balance better where clients differ, one is best where a group is one tensor."""
COMBINED_CLIENTS_MAX = {"sequential": 64, "vectorized": 1024}
"""Clients of a group that are added up: what is repeated if its worker dies."""


ONCE = ("not_vectorized",)
"""Events that each worker emits for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    """A finished task: its result is in its outbox, or one of the attributes has the reason."""

    task: GroupTask
    lost: str = ""
    """How its worker died."""
    problem: str = ""
    """What its worker could not do."""


class Pool(Protocol):
    """Workers that are alike. A lost one is replaced."""

    @property
    def workers(self) -> int: ...

    def begin(self, shared: Path) -> None:
        """Hear which folder the next tasks share."""

    def has_room(self) -> bool:
        """Whether a worker waits for a task."""

    def submit(self, task: GroupTask) -> None:
        """Give a task to a worker that waits."""

    def wait(self) -> list[EndedTask]:
        """Wait until something has happened, and return the tasks that are over, if any.

        Raises:
            AppError: the app does not load in a worker.
            RunError: workers cannot be started.
        """

    def close(self) -> None:
        """End all workers."""


class GroupExecutor:
    """Cuts cohorts into groups and has a pool of workers run them.

    Guarantees: the replies, and with `combine` the one reply that stands for all of them, do not
        depend on which worker runs what, on when it does, or on workers that die. A client's
        state is kept when its whole group has succeeded.
    """

    name = "groups"

    def __init__(
        self,
        pool: Pool,
        clients: SimulatedClients,
        folder: SharedFolder,
        *,
        combine: bool,
        inner: str,
        sink: EventSink,
    ) -> None:
        allow_many_files()  # a reply that waits to be aggregated holds one
        self._pool = pool
        self._clients = clients
        self._folder = folder
        self._combine = combine
        self._groups_per_worker = GROUPS_PER_WORKER.get(inner, 1)
        self._combined_clients_max = COMBINED_CLIENTS_MAX[inner]
        self._sink = replace(sink, event=self._emit)
        self._events_of_app = sink.event
        self._emitted: set[str] = set()
        self._times = ClientTimes(clients.count)
        self._rounds = 0

    @property
    def combines(self) -> bool:
        """Whether updates are added up."""
        return self._combine

    def execute(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Run the clients; the replies come in the order in which groups end.

        Raises:
            AppError, RunError: as `Pool.wait`; or a worker cannot read or write its files.
        """
        if not len(messages):
            return
        self._rounds += 1
        groups = GroupRound(
            messages,
            self._clients,
            self._folder.path / str(self._rounds),
            workers=self._pool.workers,
            groups_per_worker=self._groups_per_worker,
            combined_clients_max=self._combined_clients_max,
            combine=self._combine,
            times=self._times,
            sink=self._sink,
        )
        try:
            self._pool.begin(groups.shared)
            while not groups.done:
                while groups.schedule and self._pool.has_room():
                    self._pool.submit(groups.next_task())
                yield from self._replies(groups)
            yield from groups.finish()
        finally:
            groups.close()

    def close(self) -> None:
        """End the workers and remove their files."""
        self._pool.close()
        self._folder.close()

    def _emit(self, kind: str, detail: Mapping[str, object]) -> None:
        """Pass an event on; why clients are run one by one once, not once a worker."""
        if kind not in self._emitted:
            self._events_of_app(kind, detail)
        if kind in ONCE:
            self._emitted.add(kind)

    def _replies(self, groups: GroupRound) -> Iterator[Message]:
        for ended in self._pool.wait():
            if ended.task.round is not groups:
                continue  # of a round that nobody waited for
            if ended.problem:
                raise RunError(f"a worker of the {self.name} executor failed: {ended.problem}")
            yield from (
                groups.lose(ended.task, ended.lost) if ended.lost else groups.take(ended.task)
            )


def settings_of(app: App, clients: SimulatedClients, inner: str) -> WorkerSettings:
    """Return what a worker needs to know."""
    return WorkerSettings(
        folder=str(app.folder),
        sha256=app.sha256,
        overrides=list(app.settings),
        clients=clients.count,
        run_id=clients.run_id,
        run_config=clients.run_config,
        node_config=clients.node_config,
        inner=inner,
    )
