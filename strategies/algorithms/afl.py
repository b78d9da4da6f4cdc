"""Agnostic federated learning: the params that are best for the worst mixture of the clients.

Source: Mohri, Sivek, Suresh, "Agnostic federated learning" (2019), equation 5 and section 4. The
paper's weights ascend by projected gradients, which takes everybody's loss in one place. These
ascend by exponentiated gradients, the mirror step on the same simplex, for which each client
needs only its own loss, so the server never has to see a single reply.
"""

from __future__ import annotations

import math

import numpy as np

from .algorithm import Aggregate, Algorithm, Params, State
from .auxiliary_names import auxiliary_name, positive
from .bounds import require_number
from .builders import builder
from .mean import MeanAggregator
from .server_optimizers import sgd

__all__ = ["MIXTURE", "afl"]

MIXTURE = auxiliary_name("mixture", "mean")
SLOT = "mixture"


@builder(client="measures its loss before", keeps="one number", clippable=False)
def afl(*, mixture_learning_rate: float = 0.1) -> Algorithm:
    """Minimise the largest sum of lambda_k F_k over all mixtures lambda of the clients.

    A client keeps s_k, the sum of its losses before training times the rate, and answers with its
    start plus w_k times its delta, where w_k = exp(s_k - z), and with z + w_k. The new params are
    the old ones plus sum w_k delta_k / sum w_k. z is the log of what the weights were normalised
    by so far: it keeps the w_k around 1 and cancels.

    Edge cases: the mixture that a run begins with is that of the examples; a round's is normalised
        over its cohort. With a rate of 0 it is FedAvg.
    Raises:
        ConfigError: the rate is negative or not a finite number.
        RunError: the clients' weights do not add up to a positive number.
    """
    rate = require_number("mixture_learning_rate", mixture_learning_rate, at_least=0)

    def init(params: Params) -> State:
        return State(params=params, slots={SLOT: {"mean": np.zeros((), np.float64)}})

    def apply(state: State, aggregate: Aggregate) -> State:
        number, before = state.round + 1, state.slots[SLOT]["mean"]
        total = positive("the clients' mixture weights", aggregate.mean[MIXTURE] - before)
        mean = {name: aggregate.mean[name] for name in state.params}
        params, _ = sgd(learning_rate=1 / total).apply(state.params, mean, {}, number)
        after = np.asarray(before + math.log(total))
        return State(params=params, round=number, slots={SLOT: {"mean": after}})

    return Algorithm(
        name="afl",
        init=init,
        apply=apply,
        aggregator=MeanAggregator(),
        client="meadow.training.algorithms.algorithms:Afl",
        client_config={"algorithm": "afl", "mixture-learning-rate": rate},
        sent=lambda state: {**state.params, MIXTURE: state.slots[SLOT]["mean"]},
        auxiliary=("mixture",),
    )
