"""SCAFFOLD: control variates correct each client's gradients for the drift of its own data.

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging
for federated learning" (2020), algorithm 1, option II.
"""

from __future__ import annotations

from .algorithm import Aggregate, Algorithm, Params, State
from .auxiliary_names import auxiliary_name, of_kind
from .bounds import require_number
from .builders import builder
from .mean import MeanAggregator
from .server_optimizers import sgd, zeros_like

__all__ = ["CONTROL", "scaffold"]

CONTROL = "control"


@builder(
    client="adds control variates to its gradients",
    keeps="a control variate as large as the params",
    optimizer="plain sgd",
    clippable=True,
)
def scaffold(*, server_learning_rate: float | None = None, participation: float = 1.0) -> Algorithm:
    """Average the clients' params and the deltas of their control variates.

    A client keeps a control variate c_i, follows gradient - c_i + c, and after K steps sets c_i to
    c_i - c + (start - params) / (K learning rate). The server's c is the mean of all clients'; both
    means are weighted by examples, where the paper's clients have equally many.

    Units: `participation` is |S| / N, the share of all clients that trains in a round;
        `server_learning_rate` is 1 if absent.
    Raises:
        ConfigError: an argument is out of its bounds.
    """
    step = sgd(learning_rate=1.0 if server_learning_rate is None else server_learning_rate)
    share = require_number("participation", participation, above=0, at_most=1)
    drift = sgd(learning_rate=share)

    def init(params: Params) -> State:
        return State(params=params, slots={CONTROL: zeros_like(params)})

    def sent(state: State) -> Params:
        control = state.slots[CONTROL].items()
        return {**state.params, **{auxiliary_name(CONTROL, name): value for name, value in control}}

    def apply(state: State, aggregate: Aggregate) -> State:
        number = state.round + 1
        mean = {name: aggregate.mean[name] for name in state.params}
        params, _ = step.apply(state.params, mean, {}, number)
        shared = of_kind(CONTROL, aggregate.mean)
        control, _ = drift.apply(state.slots[CONTROL], shared, {}, number)
        return State(params=params, round=number, slots={CONTROL: control})

    return Algorithm(
        name="scaffold",
        init=init,
        apply=apply,
        aggregator=MeanAggregator(),
        client="meadow.training.algorithms.algorithms:Scaffold",
        client_config={"algorithm": "scaffold"},
        sent=sent,
        auxiliary=(CONTROL,),
    )
