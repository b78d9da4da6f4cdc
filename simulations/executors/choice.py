"""Which executor runs a simulation: the one that the configuration names, or the best one."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from ...apps.folder import App
from ...errors import ConfigError
from ...run.execute import run_config_of
from ..population.clients import SimulatedClients
from .apps import client_app_of, combines, vectorized_executor
from .auto import Candidate, Trying, choose_executor
from .contract import EventSink, Executor
from .processes.executor import ProcessesExecutor
from .ray.executor import RayExecutor
from .sequential import SequentialExecutor

__all__ = ["ExecutorPlan"]

EXECUTORS = ("sequential", "vectorized", "processes", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorPlan:
    """A simulation's settings of its executor; None lets Meadow choose.

    Attributes:
        threads: with how many an executor computes that runs clients one by one.
        workers: processes; None: one for "vectorized", which is this process, and else one a core.
    """

    name: str = "auto"
    threads: int = 1
    workers: int | None = None
    address: str | None = None
    node_resource: str | None = None

    @classmethod
    def of(cls, app: App, name: str | None) -> ExecutorPlan:
        """Return the plan of the app's configuration; `name` replaces the executor's name.

        Raises:
            ConfigError: there is no such executor.
        """
        known = ("auto", *EXECUTORS)
        if name is not None and name not in known:
            raise ConfigError(f"executor must be one of {', '.join(known)}, got {name!r}")
        if app.config is None:
            return cls(name=name or "auto")
        said = app.config.simulation
        chosen = name or said.executor
        if app.config.privacy.secure_aggregation.enabled:
            if chosen not in ("auto", "sequential"):
                raise ConfigError(
                    f"executor {chosen!r} does not run clients that talk to each other; with "
                    'secure aggregation it must be "sequential" or "auto"'
                )
            chosen = "sequential"
        if app.config.compression is not None and chosen in ("auto", "vectorized"):
            if chosen == "vectorized":
                raise ConfigError(
                    'executor "vectorized" trains a whole cohort at once, and nobody compresses '
                    'anything; with [compression] it must be "sequential", "processes" or "ray"'
                )
            chosen = "sequential"
        workers = said.workers if chosen != "sequential" else None
        if app.only_here and (chosen in ("processes", "ray") or (workers or 1) > 1):
            raise ConfigError(
                f'executor "{chosen}" loads the app in processes of its own, and this {app.only_here} was '
                "made in this one; put it into an app folder (`meadow new NAME`), or choose "
                '"vectorized" without simulation.workers, or "sequential"'
            )
        return cls(
            name=chosen,
            workers=workers,
            address=said.address,
            node_resource=said.node_resource,
        )

    def settled(
        self, app: App, clients: int, *, trying: Trying = lambda candidate, clients: None
    ) -> tuple[ExecutorPlan, str]:
        """Return the plan with "auto" replaced by what a trial chose, and the reason; no reason
        where there was nothing to choose. `trying` is called before each trial."""
        if self.name != "auto":
            return self, ""

        population = SimulatedClients(clients, run_id=0, run_config=run_config_of(app))
        try:
            choice = choose_executor(
                app,
                clients,
                lambda candidate, sink: self._of(candidate).make(app, population, sink=sink),
                trying=trying,
            )
        finally:
            population.close()
        return self._of(choice.candidate), choice.reason

    def _of(self, candidate: Candidate) -> ExecutorPlan:
        return replace(
            self, name=candidate.name, threads=candidate.threads, workers=candidate.workers
        )

    def make(self, app: App, clients: SimulatedClients, *, sink: EventSink) -> Executor:
        """Return the executor for a run of `app`.

        Raises:
            AppError: the app's client code does not load.
            ConfigError: the executor cannot run this app.
        """
        combine = app.config is not None and combines(app.config)
        if self.name == "vectorized":
            alone = vectorized_executor(app, clients, sink=sink)
            workers = self.workers or 1
            if workers == 1:
                return alone
            alone.close()  # what it refuses, workers would
            return ProcessesExecutor(
                app, clients, workers=workers, combine=combine, inner="vectorized", sink=sink
            )
        if self.name == "sequential":
            return SequentialExecutor(client_app_of(app), clients, threads=self.threads, sink=sink)
        if self.name == "processes":
            workers = self.workers or os.cpu_count() or 1
            return ProcessesExecutor(app, clients, workers=workers, combine=combine, sink=sink)
        return RayExecutor(
            app,
            clients,
            address=self.address,
            workers=self.workers,
            node_resource=self.node_resource,
            combine=combine,
            sink=sink,
        )
