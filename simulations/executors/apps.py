"""What executors make of an app: the ClientApp that simulated clients run, and a task's vectorized executor."""

from __future__ import annotations

import os

from flwr.clientapp import ClientApp

from ...apps.folder import App
from ...compression.client import compressed_app
from ...config.rules.builders import build_algorithm
from ...config.sections.model import Config
from ...errors import AppError, ConfigError
from ...privacy.secagg.client.app import secure_app
from ...privacy.secagg.client.identity import simulated_identity
from ...task import Task
from ...training.device_use import choose_device
from ...training.local.app import DEVICE_VARIABLE, client_app
from ..adversaries.poison import attacked
from ..population.clients import SimulatedClients
from .contract import EventSink
from .sequential import SequentialExecutor
from .vectorized.executor import VectorizedExecutor

__all__ = ["client_app_of", "combines", "task_of", "vectorized_executor"]


def task_of(app: App, config: Config | None) -> Task:
    """Return an app's task, its data divided among honest clients and adversaries."""
    task = app.load_task()
    chosen = None if config is None else config.simulation.adversaries
    return task if chosen is None else attacked(task, chosen)


def client_app_of(app: App) -> ClientApp:
    """Return an app's ClientApp: its own, or Meadow's for its task.

    Raises:
        AppError: the code does not load, or gives something else.
    """
    if app.config is not None:
        made = client_app(task_of(app, app.config))
        if app.config.privacy.secure_aggregation.enabled:
            return secure_app(made, identify=simulated_identity(app.config.run.seed))
        return compressed_app(made) if app.config.compression is not None else made
    assert app.flower is not None
    loaded = app.load_object(app.flower.client_app)
    if not isinstance(loaded, ClientApp):
        raise AppError(f"{app.flower.client_app!r} is a {type(loaded).__name__}, not a ClientApp")
    return loaded


def vectorized_executor(
    app: App, clients: SimulatedClients, *, in_group: bool = False, sink: EventSink
) -> VectorizedExecutor:
    """Return the executor that trains a cohort of an app's task in one tensor.

    `in_group`: whether its cohorts are groups of a larger one; see `VectorizedExecutor`.

    Raises:
        ConfigError: the app has a ClientApp of its own.
    """
    if app.flower is not None:
        raise ConfigError(
            'executor "vectorized" trains a meadow.Task; a Flower app\'s own ClientApp runs with '
            '"sequential", "processes" or "ray"'
        )
    task = task_of(app, app.config)
    return VectorizedExecutor(
        task,
        clients,
        device=choose_device(os.environ.get(DEVICE_VARIABLE, "auto")),
        combine=app.config is not None and combines(app.config),
        in_group=in_group,
        other=SequentialExecutor(client_app(task), clients, sink=sink),
        verify=app.config is None or app.config.simulation.verify,
        sink=sink,
    )


def combines(config: Config) -> bool:
    """Whether clients' updates may be added up before the strategy sees them.

    Adversaries in a simulation look at single ones, compressed ones do not add up, and
    asynchronous rounds weigh each.
    """
    run, single = config.run, (config.compression, config.simulation.adversaries)
    seen = run.update_norm_max is not None or config.rounds.kind != "synchronous"
    seen = seen or any(table is not None for table in single)
    return build_algorithm(config).linear and not seen
