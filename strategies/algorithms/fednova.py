"""FedNova: a client that makes more steps does not pull harder.

Source: Wang, Liu, Liang, Joshi, Poor, "Tackling the objective inconsistency problem in
heterogeneous federated optimization" (2020), equation 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .algorithm import Aggregate, Algorithm, Params, State
from .auxiliary_names import auxiliary_name, of_kind, positive
from .builders import builder
from .mean import MeanAggregator
from .server_optimizers import sgd

__all__ = ["STEPS", "fednova"]

STEPS = "steps"


@builder(client="divides its delta by its steps, and counts them", optimizer="sgd", clippable=False)
def fednova(*, server_learning_rate: float | None = None) -> Algorithm:
    """Average the clients' deltas a step, and go the mean number of steps in that direction.

    A client answers with its start plus its delta divided by a_i, and with a_i: the L1 norm of
    what its steps count in the delta, which is their number for plain SGD. Then the new params are
    the old ones plus (sum p_i a_i) (sum p_i change_i / a_i), with weights p_i by examples. Each
    tensor has an a_i of its own: 1 where no gradient moves it, as a running mean.

    Units: `server_learning_rate` scales the server's step, and is 1 if absent.
    Raises:
        ConfigError: the rate is not > 0.
        RunError: the clients' numbers of steps do not add up to a positive one.
    """
    rate = 1.0 if server_learning_rate is None else server_learning_rate
    sgd(learning_rate=rate)  # checks it

    def sent(state: State) -> Params:
        steps = {auxiliary_name(STEPS, name): np.zeros((), np.float64) for name in state.params}
        return {**state.params, **steps}

    def apply(state: State, aggregate: Aggregate) -> State:
        number = state.round + 1
        params: dict[str, NDArray[Any]] = {}
        for name, value in of_kind(STEPS, aggregate.mean).items():
            step = sgd(learning_rate=rate * positive("the clients' numbers of steps", value))
            old, mean = {name: state.params[name]}, {name: aggregate.mean[name]}
            params |= step.apply(old, mean, {}, number)[0]
        return State(params=params, round=number)

    return Algorithm(
        name="fednova",
        init=lambda params: State(params=params),
        apply=apply,
        aggregator=MeanAggregator(),
        client="meadow.training.algorithms.algorithms:FedNova",
        client_config={"algorithm": "fednova"},
        sent=sent,
        auxiliary=(STEPS,),
    )
