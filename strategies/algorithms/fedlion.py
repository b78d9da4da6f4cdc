"""FedLion: clients step by signs, and share the momentum that the signs are of.

Source: Tang, Chang, "FedLion: faster adaptive federated optimization with fewer communication"
(2024), algorithm 1; Chen et al., "Symbolic discovery of optimization algorithms" (2023) for Lion.
"""

from __future__ import annotations

from .algorithm import Aggregate, Algorithm, Params, State
from .auxiliary_names import auxiliary_name, of_kind
from .bounds import require_number
from .builders import builder
from .mean import MeanAggregator
from .server_optimizers import zeros_like

__all__ = ["MOMENTUM", "fedlion"]

MOMENTUM = "momentum"


@builder(
    keys={"beta_1": "lion_beta_1", "beta_2": "lion_beta_2"},
    client="steps by Lion, from a shared momentum",
    optimizer="sgd",
    clippable=True,
)
def fedlion(*, beta_1: float | None = None, beta_2: float | None = None) -> Algorithm:
    """Average the params and the momenta of clients that train with Lion.

    A client begins with the shared momentum m; each step moves the params by the learning rate
    against sign(beta_1 m + (1 - beta_1) gradient), and m to beta_2 m + (1 - beta_2) gradient.

    Edge cases: None is the default: 0.9 for `beta_1`, 0.99 for `beta_2`.
    Raises:
        ConfigError: a beta is not in [0, 1).
    """
    keep = require_number("beta_1", 0.9 if beta_1 is None else beta_1, at_least=0, below=1)
    hold = require_number("beta_2", 0.99 if beta_2 is None else beta_2, at_least=0, below=1)

    def sent(state: State) -> Params:
        momentum = state.slots[MOMENTUM].items()
        return {
            **state.params,
            **{auxiliary_name(MOMENTUM, name): value for name, value in momentum},
        }

    def apply(state: State, aggregate: Aggregate) -> State:
        params = {name: aggregate.mean[name] for name in state.params}
        momentum = of_kind(MOMENTUM, aggregate.mean)
        return State(params=params, round=state.round + 1, slots={MOMENTUM: momentum})

    return Algorithm(
        name="fedlion",
        init=lambda params: State(params=params, slots={MOMENTUM: zeros_like(params)}),
        apply=apply,
        aggregator=MeanAggregator(),
        client="meadow.training.algorithms.algorithms:FedLion",
        client_config={"algorithm": "fedlion", "optimizer": "lion", "beta-1": keep, "beta-2": hold},
        sent=sent,
        auxiliary=(MOMENTUM,),
    )
