"""Meadow: federated learning for people who have to run it.

The public names are loaded when they are first used, so that `import meadow` is quick and asks
for neither torch nor gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import datasets
    from .classification import accuracy, cross_entropy
    from .client.app import client_app
    from .config import Config, load_config, make_config
    from .errors import MeadowError
    from .server.app import server_app
    from .strategies.adapter import FederatedStrategy
    from .strategies.afl import afl
    from .strategies.analytics import analytics
    from .strategies.boosted_trees import xgb_bagging, xgb_cyclic
    from .strategies.ditto import ditto
    from .strategies.fedasync import fedasync
    from .strategies.fedavg import fedavg
    from .strategies.fedbn import fedbn
    from .strategies.fedbuff import fedbuff
    from .strategies.feddyn import feddyn
    from .strategies.fedlion import fedlion
    from .strategies.fednova import fednova
    from .strategies.fedper import fedper
    from .strategies.fedprox import fedprox
    from .strategies.fedrep import fedrep
    from .strategies.ifca import ifca
    from .strategies.lora import lora
    from .strategies.newton import newton
    from .strategies.qfedavg import qfedavg
    from .strategies.scaffold import scaffold
    from .task import ClientData, Site, Task

__version__ = "0.1.0"

__all__ = [
    "ClientData",
    "Config",
    "FederatedStrategy",
    "MeadowError",
    "Site",
    "Task",
    "accuracy",
    "afl",
    "analytics",
    "client_app",
    "cross_entropy",
    "datasets",
    "ditto",
    "fedasync",
    "fedavg",
    "fedbn",
    "fedbuff",
    "feddyn",
    "fedlion",
    "fednova",
    "fedper",
    "fedprox",
    "fedrep",
    "ifca",
    "load_config",
    "lora",
    "make_config",
    "newton",
    "qfedavg",
    "scaffold",
    "server_app",
    "xgb_bagging",
    "xgb_cyclic",
]

_HOMES = {
    "ClientData": ".task",
    "Config": ".config",
    "FederatedStrategy": ".strategies.adapter",
    "MeadowError": ".errors",
    "Site": ".task",
    "Task": ".task",
    "accuracy": ".classification",
    "afl": ".strategies.afl",
    "analytics": ".strategies.analytics",
    "client_app": ".client.app",
    "cross_entropy": ".classification",
    "ditto": ".strategies.ditto",
    "fedasync": ".strategies.fedasync",
    "fedavg": ".strategies.fedavg",
    "fedbn": ".strategies.fedbn",
    "fedbuff": ".strategies.fedbuff",
    "feddyn": ".strategies.feddyn",
    "fedlion": ".strategies.fedlion",
    "fednova": ".strategies.fednova",
    "fedper": ".strategies.fedper",
    "fedprox": ".strategies.fedprox",
    "fedrep": ".strategies.fedrep",
    "ifca": ".strategies.ifca",
    "load_config": ".config",
    "lora": ".strategies.lora",
    "make_config": ".config",
    "newton": ".strategies.newton",
    "qfedavg": ".strategies.qfedavg",
    "scaffold": ".strategies.scaffold",
    "server_app": ".server.app",
    "xgb_bagging": ".strategies.boosted_trees",
    "xgb_cyclic": ".strategies.boosted_trees",
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
