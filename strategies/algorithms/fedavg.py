"""FedAvg: the mean of the clients' params, and a step of any server optimizer there.

Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of
deep networks from decentralized data" (2017), algorithm 1. `server_optimizers.py` names the
sources of the variants.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np

from ...errors import ConfigError
from .algorithm import Aggregate, Algorithm, Params, State, params_of
from .bounds import require_choice
from .builders import builder
from .mean import MeanAggregator
from .server_optimizers import ServerOptimizer, adagrad, adam, sgd, yogi

__all__ = ["SERVER_OPTIMIZERS", "averaging", "fedavg"]

SERVER_OPTIMIZERS: dict[str, Callable[..., ServerOptimizer]] = {
    "sgd": sgd,
    "adagrad": adagrad,
    "adam": adam,
    "yogi": yogi,
}


@builder(privacy=("client", "record"))
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
    return averaging("fedavg", optimizer=build(**given))


def averaging(
    name: str,
    *,
    apply: Callable[[State, Aggregate], State] | None = None,
    optimizer: ServerOptimizer | None = None,
    client: object = None,
    tensors: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    slots: Callable[[Params], Mapping[str, Params]] = lambda params: {},
) -> Algorithm:
    """Return an algorithm of the clients' mean params, and of what it does with it.

    `apply` makes the server's step, by default `optimizer`'s, which by default takes the mean.
    `client` is the client's half, a `LocalAlgorithm`. `tensors` are auxiliary tensors that travel
    beside the params, "kind/name" -> shape, in float64: clients receive the values in the state's
    slot "sent", at first zeros, and the aggregate's mean has those that they answer with. `slots`
    returns, for the initial params, what else the server keeps for `apply`.

    Raises:
        ConfigError: an auxiliary tensor's name is not "kind/name", or the halves name others.
    """
    step = optimizer or sgd(learning_rate=1.0)
    for each in tensors:
        if not all(each.partition("/")):
            raise ConfigError(f'auxiliary tensors are named as "kind/name", got {each!r}')
    answered = set(getattr(client, "tensors", ()))
    if answered != set(tensors):
        raise ConfigError(
            f"algorithm {name!r}: its client's half has the auxiliary tensors {sorted(answered)}, and "
            f"averaging(tensors=...) {sorted(tensors)}; name the same ones in both"
        )

    def init(params: Params) -> State:
        begun = dict(step.init(params) if apply is None else slots(params))
        if tensors:
            begun["sent"] = {name: np.zeros(shape) for name, shape in tensors.items()}
        return State(params=params, slots=begun)

    def stepped(state: State, aggregate: Aggregate) -> State:
        number = state.round + 1
        mean = aggregate.mean
        if list(mean) != list(state.params):
            mean = {name: mean[name] for name in state.params}
        params, moved = step.apply(state.params, mean, state.slots, number)
        return State(params=params, round=number, slots={**state.slots, **moved})

    def sent(state: State) -> Params:
        return {**state.params, **state.slots["sent"]}

    return Algorithm(
        name=name,
        init=init,
        apply=apply or stepped,
        aggregator=MeanAggregator(),
        sent=sent if tensors else params_of,
        auxiliary=tuple(dict.fromkeys(each.partition("/")[0] for each in tensors)),
        client=client,
    )
