"""Boosted trees: XGBoost models that grow by the trees of all clients, or go from one to the next.

A model is the bytes of XGBoost's JSON. The server reads of it only what it must to put trees
together, and needs no XGBoost.

Source: bagging and cyclic training as in Flower 1.41 (FedXgbBagging and FedXgbCyclic); Chen,
Guestrin, "XGBoost: a scalable tree boosting system" (2016).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import RunError
from .algorithm import Aggregate, Algorithm, Params, State, Update
from .bounds import require_number, require_whole
from .builders import builder
from .tree_models import bagged, fault_in_model

__all__ = ["BYTES_MAX", "TREES", "xgb_bagging", "xgb_cyclic"]

TREES = "trees"
BYTES_MAX = 64 << 20
"""The longest model that is taken from a client."""
Join = Callable[[bytes, Sequence[bytes]], bytes]
"""(the model that was sent, the clients') -> the new one."""


@builder(client="grows trees on the common model, and answers with those", optimizer="none")
def xgb_bagging(
    *,
    objective: str = "binary:logistic",
    tree_depth: int = 6,
    tree_learning_rate: float = 0.3,
    tree_classes: int = 0,
) -> Algorithm:
    """Let every client grow trees on the common model, and add all of them to it.

    The arguments are `xgb_cyclic`'s. A round adds one boosting round of each client, all grown on
    the same model: the more clients, the smaller `tree_learning_rate` should be.

    Guarantees: trees come in the order of the clients; with trees of one output the model is
        Flower's FedXgbBagging's.
    """
    config = _config(objective, tree_depth, tree_learning_rate, 1, tree_classes)
    return _algorithm("xgb_bagging", bagged, config)


@builder(
    client="grows trees on the common model, and answers with the whole",
    optimizer="none",
    single=True,
)
def xgb_cyclic(
    *,
    objective: str = "binary:logistic",
    tree_depth: int = 6,
    tree_learning_rate: float = 0.3,
    tree_rounds: int = 1,
    tree_classes: int = 0,
) -> Algorithm:
    """Let one client after another grow trees on the model; goes with `selection.kind = "cyclic"`.

    `objective` is XGBoost's, `tree_rounds` are a client's boosting rounds, and `tree_classes` is 0
    unless the objective needs it.

    Raises:
        ConfigError: an argument is out of its bounds.
    """
    config = _config(objective, tree_depth, tree_learning_rate, tree_rounds, tree_classes)
    return _algorithm("xgb_cyclic", _latest, config)


@dataclass(slots=True)
class _Models:
    """The accumulator: the model that was sent, and the clients'."""

    before: bytes
    after: list[bytes] = field(default_factory=list)
    weight: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeAggregator:
    """Puts the clients' trees together, in the canonical order of the clients."""

    join: Join

    @property
    def group(self) -> int:
        """All updates are kept until the end."""
        return sys.maxsize

    def zero(self, like: Params) -> _Models:
        """Return the model that was sent, and no client's."""
        return _Models(before=like[TREES].tobytes())

    def fold(self, accumulator: _Models, updates: Sequence[Update]) -> _Models:
        """Keep clients' models.

        Raises:
            RunError: one stands for several clients.
        """
        for update in updates:
            if update.clients != 1:
                raise RunError(
                    f"trees do not add up, and client {update.client} sent what stands for "
                    f"{update.clients} clients"
                )
            accumulator.after.append(update.params[TREES].numpy().tobytes())
            accumulator.weight += update.weight
        return accumulator

    def finish(self, accumulator: _Models) -> Aggregate:
        """Return the new model.

        Raises:
            RunError: there are no clients' models.
        """
        if not accumulator.after:
            raise RunError("there are no updates to aggregate")
        joined = self.join(accumulator.before, accumulator.after)
        mean = {TREES: np.frombuffer(joined, np.uint8)}
        return Aggregate(mean=mean, weight=accumulator.weight, clients=len(accumulator.after))


def _latest(before: bytes, after: Sequence[bytes]) -> bytes:
    if len(after) != 1:
        raise RunError(
            f"{len(after)} clients answered, and a cyclic round has one: set run.cohort = 1, "
            'run.min_clients = 1 and selection.kind = "cyclic"'
        )
    return after[0]


def _algorithm(name: str, join: Join, config: Mapping[str, float | int | str]) -> Algorithm:
    def apply(state: State, aggregate: Aggregate) -> State:
        return State(params=aggregate.mean, round=state.round + 1)

    record = {"algorithm": name, **config}
    grown = "GrowTrees" if name == "xgb_bagging" else "GrowWholeModel"
    return Algorithm(
        name=name,
        init=lambda params: State(params={TREES: np.zeros(0, np.uint8)}),
        apply=apply,
        aggregator=TreeAggregator(join=join),
        client=f"meadow.training.algorithms.boosted_trees:{grown}",
        client_config=record,
        evaluate_config=record,
        linear=False,
        of_model=False,
        lengths_max={TREES: BYTES_MAX},
        fault=lambda tensors: fault_in_model(tensors[TREES].numpy().tobytes()),
    )


def _config(
    objective: str, depth: int, learning_rate: float, rounds: int, classes: int
) -> dict[str, float | int | str]:
    require_whole("tree_depth", depth, at_least=1)
    require_number("tree_learning_rate", learning_rate, above=0, at_most=1)
    require_whole("tree_rounds", rounds, at_least=1)
    require_whole("tree_classes", classes, at_least=0)
    return {
        "tree-objective": objective,
        "tree-depth": depth,
        "tree-learning-rate": learning_rate,
        "tree-rounds": rounds,
        "tree-classes": classes,
    }
