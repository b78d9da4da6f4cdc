"""FedDyn: each client's loss is regularised anew in each round, so that all end in one optimum.

Source: Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama, "Federated learning based on dynamic
regularization" (2021), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .algorithm import Aggregate, Algorithm, Params, State
from .auxiliary_names import auxiliary_name, of_kind
from .bounds import require_number
from .builders import builder
from .mean import MeanAggregator
from .server_optimizers import ServerOptimizer

__all__ = ["LEARNED", "feddyn"]

LEARNED = "learned"
Reals = NDArray[np.float64]


@builder(
    keys={"alpha": "dynamic_alpha"},
    client="adds a linear and a proximal term to its gradients",
    keeps="a gradient as large as the params",
    clippable=True,
)
def feddyn(*, alpha: float = 0.01, participation: float = 1.0) -> Algorithm:
    """Average the clients' params, and take away what they have drifted by so far.

    A client minimises its loss - <g_i, params> + alpha / 2 |params - start|^2, and then sets the g_i
    that it keeps to g_i - alpha (params - start). The server's h follows the mean of that, and
    the new params are the mean - h / alpha; tensors that no gradient moves become the mean. Means
    are weighted by examples, where the paper's clients have equally many.

    Units: `participation` is |P_t| / m, the share of all clients that trains in a round.
    Raises:
        ConfigError: an argument is out of its bounds.
    """
    pull = require_number("alpha", alpha, above=0)
    share = require_number("participation", participation, above=0, at_most=1)

    def rule(
        old: Reals, mean: Reals, slots: Sequence[Reals], _: int
    ) -> tuple[Reals, Sequence[Reals]]:
        drift = slots[0] - pull * share * (mean - old)
        return mean - drift / pull, (drift,)

    step = ServerOptimizer(slots=("drift",), rule=rule)

    def sent(state: State) -> Params:
        learned = {auxiliary_name(LEARNED, name): np.zeros((), np.int8) for name in state.params}
        return {**state.params, **learned}

    def apply(state: State, aggregate: Aggregate) -> State:
        number = state.round + 1
        params: dict[str, NDArray[Any]] = {}
        drift = dict(state.slots["drift"])
        for name, learned in of_kind(LEARNED, aggregate.mean).items():
            if not learned:
                params[name] = aggregate.mean[name]
                continue
            mean = {name: aggregate.mean[name]}
            new, slots = step.apply(
                {name: state.params[name]}, mean, {"drift": {name: drift[name]}}, number
            )
            params |= new
            drift |= slots["drift"]
        return State(params=params, round=number, slots={"drift": drift})

    return Algorithm(
        name="feddyn",
        init=lambda params: State(params=params, slots=step.init(params)),
        apply=apply,
        aggregator=MeanAggregator(),
        client="meadow.training.algorithms.algorithms:FedDyn",
        client_config={"algorithm": "feddyn", "dynamic-alpha": pull},
        sent=sent,
        auxiliary=(LEARNED,),
    )
