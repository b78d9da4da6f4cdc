"""Newton: logistic regression, or any small convex model, by the curvature of everybody's loss.

A client answers with the mean gradient and the mean Hessian of its loss at the common params. Their
means over all examples are those of the pooled data, and so is the step: the params are those that
Newton's method would find with all data in one place.

Source: Hastie, Tibshirani, Friedman, "The elements of statistical learning" (2009), equation 4.26;
over several sites as in Wu, Jiang, Kim, Ohno-Machado, "Grid binary logistic regression (GLORE)"
(2012), section 2.2.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from .algorithm import Aggregate, Algorithm, Params, State
from .auxiliary_names import auxiliary_name
from .bounds import require_number
from .builders import builder
from .mean import MeanAggregator

__all__ = ["GRADIENT", "HESSIAN", "VALUES_MAX", "newton"]

GRADIENT = auxiliary_name("newton", "gradient")
HESSIAN = auxiliary_name("newton", "hessian")
VALUES_MAX = 2000
"""A Hessian of this many params has four million values."""


@builder(
    client="answers with its loss's mean gradient and Hessian",
    optimizer="none",
    clippable=False,
)
def newton(*, ridge: float = 0.0, server_learning_rate: float | None = None) -> Algorithm:
    """Minimise the mean loss of all examples plus ridge / 2 * |params|^2 by Newton steps.

    Each round is one step, `server_learning_rate` (1) times as long; where the Hessian is singular
    it is the shortest one that solves the equations.

    Guarantees: the params of a round are those of the pooled data, however examples are divided.
    Raises:
        ConfigError: an argument is out of its bounds; at the start, the model has more than
            `VALUES_MAX` params, or some that are not real floating-point numbers.
    """
    penalty = require_number("ridge", ridge, at_least=0)
    rate = 1.0 if server_learning_rate is None else server_learning_rate
    require_number("server_learning_rate", rate, above=0)

    def init(params: Params) -> State:
        count = sum(values.size for values in params.values())
        if not 0 < count <= VALUES_MAX:
            raise ConfigError(
                f"newton is for models of 1 to {VALUES_MAX} params, and this one has {count}; "
                "choose another strategy"
            )
        if unfit := [name for name, values in params.items() if values.dtype.kind != "f"]:
            raise ConfigError(f"newton: tensor {unfit[0]!r} is {params[unfit[0]].dtype}, not float")
        return State(params=params)

    def sent(state: State) -> Params:
        count = sum(values.size for values in state.params.values())
        return {**state.params, GRADIENT: np.zeros(count), HESSIAN: np.zeros((count, count))}

    def apply(state: State, aggregate: Aggregate) -> State:
        flat = _flat(state.params)
        gradient = aggregate.mean[GRADIENT] + penalty * flat
        hessian = aggregate.mean[HESSIAN] + penalty * np.eye(len(flat))
        step, *_ = np.linalg.lstsq((hessian + hessian.T) / 2, gradient, rcond=None)
        return State(params=_shaped(flat - rate * step, state.params), round=state.round + 1)

    return Algorithm(
        name="newton",
        init=init,
        apply=apply,
        aggregator=MeanAggregator(),
        client="meadow.training.algorithms.newton_sums:NewtonSums",
        client_config={"algorithm": "newton"},
        sent=sent,
        auxiliary=("newton",),
    )


def _flat(params: Params) -> NDArray[np.float64]:
    return np.concatenate([values.reshape(-1).astype(np.float64) for values in params.values()])


def _shaped(flat: NDArray[np.float64], like: Params) -> Params:
    """Return the tensors that lie in one row."""
    made, start = {}, 0
    for name, values in like.items():
        size = math.prod(values.shape)
        made[name] = flat[start : start + size].reshape(values.shape).astype(values.dtype)
        start += size
    return made
