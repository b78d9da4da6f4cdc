"""Meadow: federated learning for people who have to run it.

The public names are loaded when they are first used, so that `import meadow` is quick and asks
for neither torch nor gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import datasets
    from .client.app import client_app
    from .config import Config, load_config, make_config
    from .errors import MeadowError
    from .server.app import server_app
    from .strategies.adapter import FederatedStrategy
    from .strategies.fedavg import fedavg
    from .strategies.fedprox import fedprox
    from .task import ClientData, Site, Task

__version__ = "0.1.0"

__all__ = [
    "ClientData",
    "Config",
    "FederatedStrategy",
    "MeadowError",
    "Site",
    "Task",
    "client_app",
    "datasets",
    "fedavg",
    "fedprox",
    "load_config",
    "make_config",
    "server_app",
]

_HOMES = {
    "ClientData": ".task",
    "Config": ".config",
    "FederatedStrategy": ".strategies.adapter",
    "MeadowError": ".errors",
    "Site": ".task",
    "Task": ".task",
    "client_app": ".client.app",
    "fedavg": ".strategies.fedavg",
    "fedprox": ".strategies.fedprox",
    "load_config": ".config",
    "make_config": ".config",
    "server_app": ".server.app",
}


def __getattr__(name: str) -> object:
    if name == "datasets":
        return import_module(".datasets", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
