"""FedAvg: the mean of the clients' params, and a step of any server optimizer there.

Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of
deep networks from decentralized data" (2017), algorithm 1. `server_optimizers.py` names the
sources of the variants.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Literal

from ...errors import ConfigError
from .algorithm import Aggregate, Algorithm, Params, State
from .bounds import require_choice
from .builders import builder
from .mean import MeanAggregator
from .server_optimizers import ServerOptimizer, adagrad, adam, sgd, yogi

__all__ = ["SERVER_OPTIMIZERS", "fedavg"]

SERVER_OPTIMIZERS: dict[str, Callable[..., ServerOptimizer]] = {
    "sgd": sgd,
    "adagrad": adagrad,
    "adam": adam,
    "yogi": yogi,
}


@builder
def fedavg(
    *,
    server_optimizer: Literal["sgd", "adagrad", "adam", "yogi"] = "sgd",
    server_learning_rate: float | None = None,
    server_momentum: float | None = None,
    beta_1: float | None = None,
    beta_2: float | None = None,
    tau: float | None = None,
) -> Algorithm:
    """Average the clients' params, weighted by their examples, and let an optimizer step there.

    | server_optimizer | paper           | rate | other arguments and their defaults |
    |------------------|-----------------|------|------------------------------------|
    | "sgd"            | FedAvg, FedAvgM | 1.0  | server_momentum 0.0                |
    | "adagrad"        | FedAdagrad      | 0.1  | beta_1 0.0, tau 0.001              |
    | "adam"           | FedAdam         | 0.1  | beta_1 0.9, beta_2 0.99, tau 0.001 |
    | "yogi"           | FedYogi         | 0.01 | beta_1 0.9, beta_2 0.99, tau 0.001 |

    None stands for the default.

    Raises:
        ConfigError: an argument is out of its bounds, or does not belong to the optimizer.
    """
    require_choice("server_optimizer", server_optimizer, SERVER_OPTIMIZERS)
    build = SERVER_OPTIMIZERS[server_optimizer]
    given = {
        "learning_rate": server_learning_rate,
        "momentum": server_momentum,
        "beta_1": beta_1,
        "beta_2": beta_2,
        "tau": tau,
    }
    given = {name: value for name, value in given.items() if value is not None}
    for name in given.keys() - inspect.signature(build).parameters.keys():
        argument = f"server_{name}" if name == "momentum" else name
        raise ConfigError(f"{argument} does not belong to server_optimizer {server_optimizer!r}")
    return averaging(build(**given), name="fedavg")


def averaging(optimizer: ServerOptimizer, *, name: str) -> Algorithm:
    """Return the algorithm that takes the mean of the params and lets `optimizer` step there."""

    def init(params: Params) -> State:
        return State(params=params, slots=optimizer.init(params))

    def apply(state: State, aggregate: Aggregate) -> State:
        number = state.round + 1
        params, slots = optimizer.apply(state.params, aggregate.mean, state.slots, number)
        return State(params=params, round=number, slots=slots)

    return Algorithm(name=name, init=init, apply=apply, aggregator=MeanAggregator())
