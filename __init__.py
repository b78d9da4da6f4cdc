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
    from .api.federation import Federation, RemoteRun, connect
    from .api.run import Comparison, Run, compare, load_run
    from .api.simulate import resume, simulate
    from .api.sweep import sweep
    from .config.load import load_config, make_config
    from .config.sections.compression import CompressionConfig as Compression
    from .config.sections.model import Config
    from .config.sections.privacy import DifferentialPrivacyConfig as DifferentialPrivacy
    from .config.sections.privacy import PrivacyConfig as Privacy
    from .config.sections.privacy import SecureAggregationConfig as SecureAggregation
    from .config.sections.robust import RobustConfig as Robust
    from .config.sections.run import EvaluationConfig as Evaluation
    from .config.sections.selection import SelectionConfig as Selection
    from .config.sections.simulation import SimulationConfig as Simulation
    from .config.sections.tracking import TrackingConfig as Tracking
    from .config.sections.training import TrainingConfig as Training
    from .errors import MeadowError
    from .run.app import server_app
    from .strategies.algorithms.afl import afl
    from .strategies.algorithms.algorithm import Aggregate, Algorithm, State
    from .strategies.algorithms.analytics import analytics
    from .strategies.algorithms.boosted_trees import xgb_bagging, xgb_cyclic
    from .strategies.algorithms.bounds import Bounds
    from .strategies.algorithms.builders import builder
    from .strategies.algorithms.ditto import ditto
    from .strategies.algorithms.fedasync import fedasync
    from .strategies.algorithms.fedavg import averaging, fedavg
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
    from .strategies.algorithms.mean import MeanAggregator
    from .strategies.algorithms.newton import newton
    from .strategies.algorithms.qfedavg import qfedavg
    from .strategies.algorithms.scaffold import scaffold
    from .strategies.robust.geometry import Geometry
    from .strategies.rounds.adapter import FederatedStrategy
    from .task import AdditiveMetric, ClientData, Site, Task
    from .training.additive_metrics import auroc, calibration_error, f1
    from .training.algorithms.algorithms import LocalAlgorithm
    from .training.algorithms.objective import TrainingStep
    from .training.algorithms.training_bench import TrainingBench
    from .training.classification import accuracy, cross_entropy
    from .training.local.app import client_app
    from .training.local_round import Answer, LocalRound

__version__ = "0.1.0"

install()

__all__ = [
    "AdditiveMetric",
    "Aggregate",
    "Algorithm",
    "Answer",
    "Bounds",
    "ClientData",
    "Comparison",
    "Compression",
    "Config",
    "DifferentialPrivacy",
    "Evaluation",
    "FederatedStrategy",
    "Federation",
    "Geometry",
    "LocalAlgorithm",
    "LocalRound",
    "MeadowError",
    "MeanAggregator",
    "Privacy",
    "RemoteRun",
    "Robust",
    "Run",
    "SecureAggregation",
    "Selection",
    "Simulation",
    "Site",
    "State",
    "Task",
    "Tracking",
    "Training",
    "TrainingBench",
    "TrainingStep",
    "accuracy",
    "afl",
    "analytics",
    "auroc",
    "averaging",
    "builder",
    "calibration_error",
    "client_app",
    "compare",
    "connect",
    "cross_entropy",
    "datasets",
    "ditto",
    "f1",
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
    "load_run",
    "lora",
    "make_config",
    "newton",
    "qfedavg",
    "resume",
    "scaffold",
    "server_app",
    "simulate",
    "sweep",
    "xgb_bagging",
    "xgb_cyclic",
]

_HOMES = {
    "auroc": ".training.additive_metrics",
    "calibration_error": ".training.additive_metrics",
    "f1": ".training.additive_metrics",
    "averaging": ".strategies.algorithms.fedavg",
    "LocalRound": ".training.local_round",
    "Answer": ".training.local_round",
    "TrainingBench": ".training.algorithms.training_bench",
    "TrainingStep": ".training.algorithms.objective",
    "Geometry": ".strategies.robust.geometry",
    "LocalAlgorithm": ".training.algorithms.algorithms",
    "MeanAggregator": ".strategies.algorithms.mean",
    "builder": ".strategies.algorithms.builders",
    "Bounds": ".strategies.algorithms.bounds",
    "State": ".strategies.algorithms.algorithm",
    "Algorithm": ".strategies.algorithms.algorithm",
    "AdditiveMetric": ".task",
    "Aggregate": ".strategies.algorithms.algorithm",
    "ClientData": ".task",
    "Comparison": ".api.run",
    "Compression": ".config.sections.compression:CompressionConfig",
    "Config": ".config.sections.model",
    "DifferentialPrivacy": ".config.sections.privacy:DifferentialPrivacyConfig",
    "Evaluation": ".config.sections.run:EvaluationConfig",
    "FederatedStrategy": ".strategies.rounds.adapter",
    "Federation": ".api.federation",
    "MeadowError": ".errors",
    "Privacy": ".config.sections.privacy:PrivacyConfig",
    "RemoteRun": ".api.federation",
    "Robust": ".config.sections.robust:RobustConfig",
    "Run": ".api.run",
    "SecureAggregation": ".config.sections.privacy:SecureAggregationConfig",
    "Selection": ".config.sections.selection:SelectionConfig",
    "Simulation": ".config.sections.simulation:SimulationConfig",
    "Site": ".task",
    "Task": ".task",
    "Tracking": ".config.sections.tracking:TrackingConfig",
    "Training": ".config.sections.training:TrainingConfig",
    "accuracy": ".training.classification",
    "afl": ".strategies.algorithms.afl",
    "analytics": ".strategies.algorithms.analytics",
    "client_app": ".training.local.app",
    "compare": ".api.run",
    "connect": ".api.federation",
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
    "load_run": ".api.run",
    "lora": ".strategies.algorithms.lora",
    "make_config": ".config.load",
    "newton": ".strategies.algorithms.newton",
    "qfedavg": ".strategies.algorithms.qfedavg",
    "resume": ".api.simulate",
    "scaffold": ".strategies.algorithms.scaffold",
    "server_app": ".run.app",
    "simulate": ".api.simulate",
    "sweep": ".api.sweep",
    "xgb_bagging": ".strategies.algorithms.boosted_trees",
    "xgb_cyclic": ".strategies.algorithms.boosted_trees",
}


def __getattr__(name: str) -> object:
    if name == "datasets":
        return import_module(".datasets", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value: object = getattr(import_module(module, __name__), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
