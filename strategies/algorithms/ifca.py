"""IFCA: several models, of which every client trains the one that fits its data best.

Source: Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated learning"
(2020), algorithm 1, with model averaging.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .algorithm import Aggregate, Algorithm, Params, State
from .auxiliary_names import auxiliary_name, of_kind
from .bounds import require_number, require_whole
from .builders import builder
from .mean import MeanAggregator
from .server_optimizers import is_floating, sgd

__all__ = ["MEMBERS", "cluster_kind", "ifca"]

MEMBERS = "members"


def cluster_kind(number: int) -> str:
    """Return the kind of auxiliary tensors that a cluster's params are."""
    return f"cluster-{number}"


@builder(
    client="measures its loss under every cluster's params, and trains the best",
    clippable=False,
    personal=True,
)
def ifca(*, clusters: int = 2, cluster_spread: float = 0.5, seed: int = 0) -> Algorithm:
    """Average the params of each cluster over the clients that chose it.

    A client chooses the cluster whose params have the least loss on its training data, and trains
    those; it answers with all clusters, the others as they came. A cluster that nobody chose stays.
    Cluster 0 begins with the model's params and is the one that is kept as the run's model; the
    others begin beside it, with noise of `cluster_spread` standard deviations of each tensor.

    Raises:
        ConfigError: an argument is out of its bounds.
    """
    count = require_whole("clusters", clusters, at_least=2)
    spread = require_number("cluster_spread", cluster_spread, above=0)
    kinds = [cluster_kind(number) for number in range(count)]

    def init(params: Params) -> State:
        generator = np.random.default_rng([seed, count])
        others = {kind: _beside(params, spread, generator) for kind in kinds[1:]}
        return State(params=params, slots=others)

    def sent(state: State) -> Params:
        every = {kinds[0]: state.params, **state.slots}
        made = {auxiliary_name(kind, n): v for kind in kinds for n, v in every[kind].items()}
        return {
            **made,
            **{auxiliary_name(MEMBERS, kind): np.zeros((), np.float64) for kind in kinds},
        }

    def apply(state: State, aggregate: Aggregate) -> State:
        number, clusters = state.round + 1, {kinds[0]: state.params, **state.slots}
        for kind in kinds:
            share = float(aggregate.mean[auxiliary_name(MEMBERS, kind)])
            if share > 0:
                step = sgd(learning_rate=1 / share)
                mean = of_kind(kind, aggregate.mean)
                clusters[kind], _ = step.apply(clusters[kind], mean, {}, number)
        params = clusters.pop(kinds[0])
        return State(params=params, round=number, slots=clusters)

    return Algorithm(
        name="ifca",
        init=init,
        apply=apply,
        aggregator=MeanAggregator(),
        client="meadow.training.algorithms.personalization:Ifca",
        client_config={"algorithm": "ifca"},
        evaluate_config={"algorithm": "ifca"},
        sent=sent,
        evaluated=sent,
        auxiliary=(*kinds, MEMBERS),
    )


def _beside(
    params: Params, spread: float, generator: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """Return params with noise: what is constant, as a norm's statistics are, stays."""
    made = {}
    for name, values in params.items():
        made[name] = values
        if is_floating(values.dtype) and values.dtype.kind != "c" and values.size > 1:
            wide = values.astype(np.float64)
            noise = generator.standard_normal(values.shape) * wide.std() * spread
            made[name] = (wide + noise).astype(values.dtype)
    return made
