"""q-FedAvg: clients with a larger loss count for more, so that accuracy is spread more evenly.

Source: Li, Sanjabi, Beirami, Smith, "Fair resource allocation in federated learning" (2020),
algorithm 2.
"""

from __future__ import annotations

import numpy as np

from .algorithm import Aggregate, Algorithm, State
from .auxiliary_names import auxiliary_name, positive
from .bounds import require_number
from .builders import builder
from .mean import MeanAggregator
from .server_optimizers import sgd

__all__ = ["CURVATURE", "qfedavg"]

CURVATURE = auxiliary_name("curvature", "mean")


@builder(
    keys={"q": "fairness_q"}, client="measures its loss before", optimizer="sgd", clippable=False
)
def qfedavg(*, q: float = 0.2) -> Algorithm:
    """Minimise sum p_k F_k^(q + 1) / (q + 1), with weights p_k by examples.

    A client answers with its start plus F_k^q times its delta, where F_k is its loss before it
    trains, and with h_k / L = q F_k^(q - 1) L |change|^2 + F_k^q, where L is 1 / learning rate. The
    new params are the old ones plus the sum of the former divided by the sum of the latter.

    Edge cases: with `q` 0 it is FedAvg.
    Raises:
        ConfigError: `q` is negative or not a finite number.
        RunError: the clients' h_k do not add up to a positive number.
    """
    power = require_number("q", q, at_least=0)

    def apply(state: State, aggregate: Aggregate) -> State:
        number = state.round + 1
        mean = {name: aggregate.mean[name] for name in state.params}
        curvature = positive("the clients' curvatures", aggregate.mean[CURVATURE])
        params, _ = sgd(learning_rate=1 / curvature).apply(state.params, mean, {}, number)
        return State(params=params, round=number)

    return Algorithm(
        name="qfedavg",
        init=lambda params: State(params=params),
        apply=apply,
        aggregator=MeanAggregator(),
        client="meadow.training.algorithms.algorithms:QFedAvg",
        client_config={"algorithm": "qfedavg", "fairness-q": power},
        sent=lambda state: {**state.params, CURVATURE: np.zeros((), np.float64)},
        auxiliary=("curvature",),
    )
