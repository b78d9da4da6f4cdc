"""The Ray executor: groups of clients on the workers of a Ray cluster, or of a local one.

Ray is an extra; it is imported when the executor is made.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ....apps.folder import App, pack
from ....errors import AppError, ConfigError, RunError
from ....machine.shared_folder import SharedFolder
from ....transport.address import Address
from ...population.clients import SimulatedClients
from ..contract import EventSink
from ..processes.group_executor import EndedTask, GroupExecutor, settings_of
from ..processes.group_round import GroupTask
from .actor import GroupActor, read_folder, write_folder

__all__ = ["RayExecutor"]

LOOK_S = 1.0
START_S_MAX = 300.0
"""For an actor to be there, where there is none: a cluster may have to start machines."""
RESOURCE_SHARE = 0.001
"""What an actor takes of a node's custom resource, which says only that the node has something."""
STARTS_MAX = 3
CLOSE_S = 5.0
CONNECT_S = 10.0


class RayExecutor(GroupExecutor):
    """Runs an app's clients on Ray actors, each with one CPU; see `GroupExecutor`."""

    name = "ray"

    def __init__(
        self,
        app: App,
        clients: SimulatedClients,
        *,
        address: str | None,
        workers: int | None,
        node_resource: str | None = None,
        combine: bool,
        inner: str = "sequential",
        sink: EventSink,
    ) -> None:
        """Connect to the cluster at `address`, or start one on this machine, and start actors.

        A cluster that this process is connected to already is used, and left as it is. Actors start
        on nodes that have the custom resource `node_resource` only; on any, if that is None.
        `workers` is by default the number of these nodes' CPUs.

        Raises:
            ConfigError: Ray is not installed, no cluster answers at `address`, or no node of it has
                `node_resource`.
            StoreError: there is no place for the files of a round.
        """
        pool = _RayPool(app, clients, inner, address, workers, node_resource)
        try:
            folder = SharedFolder()
        except BaseException:
            pool.close()
            raise
        super().__init__(pool, clients, folder, combine=combine, inner=inner, sink=sink)
        self._actors = pool

    @property
    def pids(self) -> list[int]:
        """The process ids of the actors that are ready, each on its machine."""
        return self._actors.pids


@dataclass(slots=True)
class _Actor:
    handle: Any
    waits_for: Any
    """The reference to what it is computing, None if it is idle."""
    pid: int = 0
    """0 until it is ready."""
    task: GroupTask | None = None


class _RayPool:
    def __init__(
        self,
        app: App,
        clients: SimulatedClients,
        inner: str,
        address: str | None,
        workers: int | None,
        node_resource: str | None,
    ) -> None:
        self._ray = _imported()
        self._owns_cluster = not self._ray.is_initialized()
        if self._owns_cluster:
            _connect(self._ray, address, workers)
        try:
            cpus = _cpus(self._ray.nodes(), node_resource)
        except ConfigError:
            self._leave()
            raise
        self.workers = workers or max(1, int(cpus))
        self._node_resource = node_resource
        self._settings = self._ray.put(settings_of(app, clients, inner).to_json())
        self._archive = self._ray.put(pack(app.folder))
        resources = {node_resource: RESOURCE_SHARE} if node_resource else None
        options = {"num_cpus": 1, "max_restarts": 0, "resources": resources}
        self._class = self._ray.remote(**options)(GroupActor)
        self._failed_starts = 0
        self._round = 0
        self._shared: Any = None
        self._waits_since_s = time.monotonic()
        self._actors = [self._start() for _ in range(self.workers)]

    @property
    def pids(self) -> list[int]:
        return [actor.pid for actor in self._actors if actor.pid]

    def begin(self, shared: Path) -> None:
        self._round += 1
        self._shared = self._ray.put(read_folder(shared))

    def has_room(self) -> bool:
        return any(actor.waits_for is None for actor in self._actors)

    def submit(self, task: GroupTask) -> None:
        actor = next(actor for actor in self._actors if actor.waits_for is None)
        actor.task = task
        inbox = read_folder(task.inbox)
        actor.waits_for = actor.handle.run.remote(str(self._round), self._shared, inbox)

    def wait(self) -> list[EndedTask]:
        waiting = [actor.waits_for for actor in self._actors if actor.waits_for is not None]
        done, _ = self._ray.wait(waiting, num_returns=1, timeout=LOOK_S)
        if not done and not self.pids and time.monotonic() > self._waits_since_s + START_S_MAX:
            raise RunError(
                f"the Ray cluster started none of {self.workers} workers in {START_S_MAX:g} s; "
                f"it needs one free CPU for each{_of_nodes(self._node_resource)}: free some, or ask for "
                "fewer workers"
            )
        return [
            ended
            for actor in list(self._actors)
            if actor.waits_for in done
            for ended in self._hear(actor)
        ]

    def close(self) -> None:
        actors, self._actors = self._actors, []
        with suppress(Exception):  # a cluster that is gone has nothing to be closed
            closing = [actor.handle.close.remote() for actor in actors if actor.pid]
            if closing:
                self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
            for actor in actors:
                self._ray.kill(actor.handle)
        self._leave()

    def _leave(self) -> None:
        if self._owns_cluster:
            self._ray.shutdown()

    def _start(self) -> _Actor:
        handle = self._class.remote(self._settings, self._archive)
        return _Actor(handle=handle, waits_for=handle.load.remote())

    def _hear(self, actor: _Actor) -> list[EndedTask]:
        try:
            problem, result = self._ray.get(actor.waits_for)
        except self._ray.exceptions.RayError as error:
            return self._replace(actor, _first_line(error))
        actor.waits_for = None
        if actor.task is None:
            if problem:
                raise AppError(problem)
            actor.pid, self._failed_starts = result, 0
            return []
        task, actor.task = actor.task, None
        if task.outbox.is_dir():  # otherwise of a round that nobody waited for
            write_folder(task.outbox, result)
        return [EndedTask(task=task, problem=problem)]

    def _replace(self, actor: _Actor, cause: str) -> list[EndedTask]:
        if not actor.pid:
            self._failed_starts += 1
            if self._failed_starts >= STARTS_MAX:
                raise RunError(
                    f"Ray workers cannot be started: {STARTS_MAX} times in a row, one was lost "
                    f"while it loaded the app: {cause}"
                )
        with suppress(Exception):  # it is gone, most likely
            self._ray.kill(actor.handle)
        self._waits_since_s = time.monotonic()
        self._actors[self._actors.index(actor)] = self._start()
        return (
            [EndedTask(task=actor.task, lost=f"was lost: {cause}")]
            if actor.task is not None
            else []
        )


def _imported() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Which GPU a client uses is said by MEADOW_DEVICE, as everywhere; Ray would hide them all.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f'executor "ray" needs Ray ({error}): pip install "meadow-fl[simulation]", or use '
            'executor = "processes"'
        ) from None
    return ray


def _connect(ray: ModuleType, address: str | None, workers: int | None) -> None:
    """Connect to a cluster, or start one here.

    Ray gives its own processes 30 s to start, which a busy machine may not keep: a cluster of
    this machine is begun anew then, `STARTS_MAX` times in all.
    """
    local = {} if address else {"num_cpus": workers}
    for tries_left in reversed(range(1 if address else STARTS_MAX)):
        try:
            _look_for(address)
            ray.init(
                address=address or "local",
                include_dashboard=None if address else False,
                logging_level=logging.ERROR,
                log_to_driver=False,
                **local,
            )
            return
        except (OSError, ValueError, RuntimeError) as error:
            ray.shutdown()
            if tries_left and isinstance(error, RuntimeError):
                continue
            where = (
                f"no Ray cluster answers at {address!r}" if address else "Ray does not start here"
            )
            raise ConfigError(f"{where}: {_first_line(error)}") from error


def _look_for(address: str | None) -> None:
    """Connect to an address that is plainly a host and a port: Ray tries for minutes, and ends
    the process then."""
    with suppress(ConfigError):  # "auto", "ray://..."
        where = Address.parse(address or "")
        socket.create_connection((where.host, where.port), timeout=CONNECT_S).close()


def _cpus(nodes: list[dict[str, Any]], resource: str | None) -> float:
    """Return how many CPUs the nodes with this resource have, or all nodes.

    Raises:
        ConfigError: there is none with it.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    fit = [has for has in alive if resource is None or has.get(resource)]
    if not fit:
        raise ConfigError(
            f"simulation.node_resource = {resource!r}: none of the Ray cluster's {len(alive)} nodes has "
            "this resource; start Ray where the clients' data are with ray start "
            f"--resources='{{\"{resource}\": 1}}', and name that cluster as simulation.address"
        )
    return sum(float(has.get("CPU", 0)) for has in fit)


def _of_nodes(resource: str | None) -> str:
    return f" on a node with the resource {resource!r}" if resource else ""


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
