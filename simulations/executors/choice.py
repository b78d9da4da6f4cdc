"""Which executor runs a simulation: the one that the configuration names, or the best one."""

from __future__ import annotations

from flwr.clientapp import ClientApp

from ...apps import App
from ...client.app import client_app
from ...errors import AppError
from ..clients import SimulatedClients
from .contract import Executor, Teller
from .sequential import SequentialExecutor

__all__ = ["client_app_of", "make_executor"]


def make_executor(app: App, clients: SimulatedClients, *, teller: Teller) -> Executor:
    """Return the executor for a run of `app`.

    Raises:
        AppError: the app's client code does not load.
    """
    return SequentialExecutor(client_app_of(app), clients, teller=teller)


def client_app_of(app: App) -> ClientApp:
    """Return an app's ClientApp: its own, or Meadow's for its task.

    Raises:
        AppError: the code does not load, or gives something else.
    """
    if app.flower is None:
        return client_app(app.load_task())
    made = app.load_object(app.flower.client_app)
    if not isinstance(made, ClientApp):
        raise AppError(f"{app.flower.client_app!r} is a {type(made).__name__}, not a ClientApp")
    return made
