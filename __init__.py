"""Meadow: federated learning for people who have to run it.

The public names are loaded when they are first used, so that `import meadow` is quick and asks
for neither torch nor gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .deprecated import install

if TYPE_CHECKING:
    from . import datasets
    from .config.load import load_config, make_config
    from .config.sections.model import Config
    from .errors import MeadowError
    from .run.app import server_app
    from .strategies.algorithms.afl import afl
    from .strategies.algorithms.analytics import analytics
    from .strategies.algorithms.boosted_trees import xgb_bagging, xgb_cyclic
    from .strategies.algorithms.ditto import ditto
    from .strategies.algorithms.fedasync import fedasync
    from .strategies.algorithms.fedavg import fedavg
    from .strategies.algorithms.fedbn import fedbn
    from .strategies.algorithms.fedbuff import fedbuff
    from .strategies.algorithms.feddyn import feddyn
    from .strategies.algorithms.fedlion import fedlion
    from .strategies.algorithms.fednova import fednova
    from .strategies.algorithms.fedper import fedper
    from .strategies.algorithms.fedprox import fedprox
    from .strategies.algorithms.fedrep import fedrep
    from .strategies.algorithms.ifca import ifca
    from .strategies.algorithms.lora import lora
    from .strategies.algorithms.newton import newton
    from .strategies.algorithms.qfedavg import qfedavg
    from .strategies.algorithms.scaffold import scaffold
    from .strategies.rounds.adapter import FederatedStrategy
    from .task import ClientData, Site, Task
    from .training.classification import accuracy, cross_entropy
    from .training.local.app import client_app

__version__ = "0.1.0"

install()

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
    "Config": ".config.sections.model",
    "FederatedStrategy": ".strategies.rounds.adapter",
    "MeadowError": ".errors",
    "Site": ".task",
    "Task": ".task",
    "accuracy": ".training.classification",
    "afl": ".strategies.algorithms.afl",
    "analytics": ".strategies.algorithms.analytics",
    "client_app": ".training.local.app",
    "cross_entropy": ".training.classification",
    "ditto": ".strategies.algorithms.ditto",
    "fedasync": ".strategies.algorithms.fedasync",
    "fedavg": ".strategies.algorithms.fedavg",
    "fedbn": ".strategies.algorithms.fedbn",
    "fedbuff": ".strategies.algorithms.fedbuff",
    "feddyn": ".strategies.algorithms.feddyn",
    "fedlion": ".strategies.algorithms.fedlion",
    "fednova": ".strategies.algorithms.fednova",
    "fedper": ".strategies.algorithms.fedper",
    "fedprox": ".strategies.algorithms.fedprox",
    "fedrep": ".strategies.algorithms.fedrep",
    "ifca": ".strategies.algorithms.ifca",
    "load_config": ".config.load",
    "lora": ".strategies.algorithms.lora",
    "make_config": ".config.load",
    "newton": ".strategies.algorithms.newton",
    "qfedavg": ".strategies.algorithms.qfedavg",
    "scaffold": ".strategies.algorithms.scaffold",
    "server_app": ".run.app",
    "xgb_bagging": ".strategies.algorithms.boosted_trees",
    "xgb_cyclic": ".strategies.algorithms.boosted_trees",
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
