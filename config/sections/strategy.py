"""[strategy]: the algorithm, and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...strategies.algorithms.builders import BUILT_IN, REFERENCE
from ..schema.installed import STRATEGIES
from ..schema.settings import setting

__all__ = ["StrategyConfig"]

_ADAPTIVE = ("adagrad", "adam", "yogi")
_FEDAVG = {"name": ("fedavg",)}
_TREES = ("xgb_bagging", "xgb_cyclic")


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyConfig:
    """[strategy]: the algorithm, and its arguments."""

    name: str = setting(
        "fedavg",
        'the algorithm; docs/algorithms.md says what each is for. "module:builder", or a name '
        "that an installed package registers, is one of your own, whose keyword arguments are the "
        "other keys: docs/own-algorithms.md",
        choices=tuple(BUILT_IN),
        or_like=("module:builder", REFERENCE),
        installed=STRATEGIES,
    )
    options: Mapping[str, Any] = field(default_factory=dict, metadata={"free": True})
    """The other keys where `name` is an algorithm of one's own: its builder's keyword arguments."""
    server_optimizer: Literal["sgd", "adagrad", "adam", "yogi"] = setting(
        "sgd",
        "how the server applies the mean update: sgd is FedAvg (FedAvgM with momentum), the "
        "others are FedAdagrad, FedAdam and FedYogi",
        only=_FEDAVG,
    )
    server_learning_rate: float | None = setting(
        None,
        "the server optimizer's step, or newton's; if absent 1, with yogi 0.01, with adagrad and adam 0.1",
        above=0,
        only={"name": ("fedavg", "scaffold", "fednova", "newton")},
    )
    server_momentum: float | None = setting(
        None,
        "FedAvgM's momentum; none if absent",
        at_least=0,
        below=1,
        only={**_FEDAVG, "server_optimizer": ("sgd",)},
    )
    beta_1: float | None = setting(
        None,
        "decay of the first moment; if absent 0 for adagrad, else 0.9",
        at_least=0,
        below=1,
        only={**_FEDAVG, "server_optimizer": _ADAPTIVE},
    )
    beta_2: float | None = setting(
        None,
        "decay of the second moment; 0.99 if absent",
        at_least=0,
        below=1,
        only={**_FEDAVG, "server_optimizer": ("adam", "yogi")},
    )
    tau: float | None = setting(
        None,
        "added to the root of the second moment: larger is less adaptive; 0.001 if absent",
        above=0,
        only={**_FEDAVG, "server_optimizer": _ADAPTIVE},
    )
    proximal_mu: float = setting(
        0.01, "FedProx's pull towards the global params", at_least=0, only={"name": ("fedprox",)}
    )
    participation: float | None = setting(
        None,
        "the share of all clients that trains in a round; if absent `run.cohort`, and where that "
        "is a number of clients, its share of `simulation.clients`",
        above=0,
        at_most=1,
        only={"name": ("scaffold", "feddyn")},
    )
    dynamic_alpha: float = setting(
        0.01, "FedDyn's regularisation", above=0, only={"name": ("feddyn",)}
    )
    fairness_q: float = setting(
        0.2,
        "q-FedAvg's q: how much more clients with a larger loss count; 0 is FedAvg",
        at_least=0,
        only={"name": ("qfedavg",)},
    )
    mixture_learning_rate: float = setting(
        0.1,
        "how fast AFL's mixture moves to the clients with the largest loss; 0 is FedAvg",
        at_least=0,
        only={"name": ("afl",)},
    )
    lion_beta_1: float = setting(
        0.9,
        "how much of FedLion's momentum is in a step's sign",
        at_least=0,
        below=1,
        only={"name": ("fedlion",)},
    )
    lion_beta_2: float = setting(
        0.99, "decay of FedLion's momentum", at_least=0, below=1, only={"name": ("fedlion",)}
    )
    private: tuple[str, ...] = setting(
        (),
        "patterns of the tensors that are the clients' own, as `head.*`; they never leave them",
        only={"name": ("fedper", "fedrep")},
    )
    head_epochs: int = setting(
        1,
        "epochs of the private layers alone, before the shared ones train",
        at_least=1,
        at_most=10**6,
        only={"name": ("fedrep",)},
    )
    ditto_lambda: float = setting(
        0.1,
        "how strongly a client's own params are pulled towards the common ones",
        at_least=0,
        only={"name": ("ditto",)},
    )
    clusters: int = setting(
        2, "how many models IFCA trains", at_least=2, at_most=64, only={"name": ("ifca",)}
    )
    cluster_spread: float = setting(
        0.5,
        "how far from each other they begin, in standard deviations of a tensor",
        above=0,
        only={"name": ("ifca",)},
    )
    adapters: tuple[str, ...] = setting(
        ("*lora_*", "*modules_to_save*"),
        "patterns of the tensors that learn and travel; the rest of the model is frozen, and stays",
        only={"name": ("lora",)},
    )
    ridge: float = setting(
        0.0,
        "newton adds this / 2 times the squared norm of the params to the loss",
        at_least=0,
        only={"name": ("newton",)},
    )
    objective: str = setting("binary:logistic", "XGBoost's objective", only={"name": _TREES})
    tree_depth: int = setting(
        6, "the greatest depth of a tree", at_least=1, at_most=32, only={"name": _TREES}
    )
    tree_learning_rate: float = setting(
        0.3,
        "what a tree's leaves are multiplied by; with bagging, trees of all clients add up",
        above=0,
        at_most=1,
        only={"name": _TREES},
    )
    tree_rounds: int = setting(
        1,
        "boosting rounds of a client",
        at_least=1,
        at_most=10**4,
        only={"name": ("xgb_cyclic",)},
    )
    tree_classes: int = setting(
        0,
        "how many classes there are, for objectives that need it",
        at_least=0,
        at_most=10**4,
        only={"name": _TREES},
    )
    columns: tuple[str, ...] = setting(
        (),
        "what is counted: columns of `Task.columns` and the ranges to look at, as `age=0:120`",
        only={"name": ("analytics",)},
    )
    bins: int = setting(
        20,
        "cells of a histogram; each round makes a quantile's interval so many times narrower",
        at_least=2,
        at_most=10**4,
        only={"name": ("analytics",)},
    )
    quantiles: tuple[float, ...] = setting(
        (0.25, 0.5, 0.75), "the quantiles, from 0 to 1", only={"name": ("analytics",)}
    )
    rows_min: int = setting(
        5,
        "counts are multiples of it, and no quantile's interval has fewer rows; 1 shows all",
        at_least=1,
        at_most=10**6,
        only={"name": ("analytics",)},
    )

    @property
    def is_own(self) -> bool:
        """Whether `name` is the builder of an app or of an installed package."""
        return self.name not in BUILT_IN
