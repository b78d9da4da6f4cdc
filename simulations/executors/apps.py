"""The ClientApp that simulated clients run: an app's own, or Meadow's for its task."""

from __future__ import annotations

from flwr.clientapp import ClientApp

from ...apps.folder import App
from ...compression.client import compressed_app
from ...config.sections.model import Config
from ...errors import AppError
from ...privacy.secagg.client.app import secure_app
from ...privacy.secagg.client.identity import simulated_identity
from ...task import Task
from ...training.local.app import client_app
from ..adversaries.poison import attacked

__all__ = ["client_app_of", "task_of"]


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
