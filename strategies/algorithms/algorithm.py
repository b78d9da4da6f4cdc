"""What an algorithm is: a frozen pair of pure functions and what travels beside the params.

Everything here is data. A builder function with keyword hyperparameters (`fedavg`, `fedprox`)
returns an `Algorithm`; the adapter in `adapter.py` runs it as a Flower Strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...flower.messages import FlatTensor
from .builders import Recipe
from .metrics import Metrics

__all__ = ["Aggregate", "Aggregator", "Algorithm", "Params", "State", "Update", "params_of"]

A = TypeVar("A")

Params = Mapping[str, NDArray[Any]]
"""Named arrays: a model's parameters and buffers, in the model's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One reply: the params that a client trained, and their weight.

    A reply may stand for many clients: their weighted mean, and the sum of their weights.
    """

    client: int
    """The Flower node id."""
    params: Mapping[str, FlatTensor]
    weight: float
    """The number of examples, > 0."""
    stored: bool = False
    """Whether the params are read from files: then it costs no memory to let them wait."""
    clients: int = 1
    """How many clients it stands for."""
    metrics: Metrics = field(default_factory=dict)
    """What they report beside the params: the weighted means."""
    summed: bool = False
    """Whether `params` are the clients' weighted sums, in float64, not their weighted mean."""
    rests: tuple[Update, ...] = ()
    """What rounding took from these sums and from `weight`: to be added to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """What a round's updates add up to: their weighted mean and total weight."""

    mean: Params
    weight: float
    clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """An algorithm's state between rounds; everything a checkpoint must hold.

    `slots` are what the server keeps beside the params, by name: the server optimizer's arrays
    ("momentum", "second_moment"), with the params' names and shapes, or an algorithm's own.
    """

    params: Params
    round: int = 0
    slots: Mapping[str, Params] = field(default_factory=dict)

    def moved(self, params: Params, **slots: Params) -> State:
        """Return the state after this round: new params and slots, in the dtypes of the old ones.

        What is not given stays as it was.

        Raises:
            ConfigError: a slot or a tensor in it is not among those that the state began with, or
                has another shape: a checkpoint could not be continued.
        """
        kept = dict(self.slots)
        for name, given in slots.items():
            kept[name] = _laid_over(self.slots.get(name, {}), given, f"slot {name!r}")
        made = _laid_over(self.params, params, "the params")
        return State(params=made, round=self.round + 1, slots=kept)


def _laid_over(old: Params, new: Params, where: str) -> Params:
    for name, values in new.items():
        if name not in old or np.shape(values) != old[name].shape:
            found = f"of shape {np.shape(values)}" if name in old else "that was not there"
            raise ConfigError(
                f"{where} of the new state: {name!r} is a tensor {found}; the state that `init` "
                "makes has all names and shapes, as of `averaging(slots=...)`"
            )
    return {**old, **{name: _like(values, old[name]) for name, values in new.items()}}


def _like(values: NDArray[Any], old: NDArray[Any]) -> NDArray[Any]:
    found = np.asarray(values)
    whole = old.dtype.kind in "iu" and found.dtype.kind not in "iu"
    return (np.rint(found) if whole else found).astype(old.dtype, copy=False)


class Aggregator(Protocol[A]):
    """Folds updates as they come, so that memory does not grow with the cohort.

    The caller passes updates in the canonical order of clients, any number at a time: how they
    are cut into calls makes no difference, to the last bit. `fold` may keep a few updates back
    (at most `group`) and may reuse the accumulator it is given; `finish` consumes it.
    """

    @property
    def group(self) -> int: ...
    def zero(self, like: Params) -> A: ...
    def fold(self, accumulator: A, updates: Sequence[Update]) -> A: ...
    def finish(self, accumulator: A) -> Aggregate: ...


def params_of(state: State) -> Params:
    """Return the params: what most algorithms send, and nothing else."""
    return state.params


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A federated algorithm: `init(params) -> state`, `apply(state, aggregate) -> state`."""

    name: str
    init: Callable[[Params], State] = lambda params: State(params=params)
    apply: Callable[[State, Aggregate], State]
    aggregator: Aggregator[Any]
    client: Any = None
    """The client's half: a `LocalAlgorithm`, or "module:Class" of one that takes no arguments, which
    only clients import; None for training along the gradient of the task's loss alone."""
    client_config: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    """Keys for the clients' ConfigRecord: the local objective, e.g. {"proximal-mu": 0.1}."""
    sent: Callable[[State], Params] = params_of
    """Returns what clients receive to train. Replies and the aggregate's mean have the same names,
    shapes and dtypes. It may contain auxiliary tensors beside or instead of params."""
    params_config: Callable[[Params], Mapping[str, int]] = lambda params: {}
    """Keys for the clients' ConfigRecords that follow from the initial params."""
    evaluated: Callable[[State], Params] | None = params_of
    """Returns what clients receive to evaluate; None: they do not evaluate."""
    evaluate_config: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    """As `client_config`, for evaluations: of an algorithm with personal params."""
    auxiliary: tuple[str, ...] = ()
    """The kinds of auxiliary tensors among what is sent: "control" for names as control/weight."""
    linear: bool = True
    """False if it needs every single update: then no executor or relay may sum updates."""
    of_model: bool = True
    """Whether its params are those of the task's model. If not, `init` makes them, and the model
    cannot be evaluated with them."""
    measured: Callable[[State], Metrics] | None = None
    """Computes metrics from the params alone, instead of a central evaluation."""
    reports: bool = True
    """Whether metrics of single clients are kept."""
    lengths_max: Mapping[str, int] = field(default_factory=dict)
    """Tensors of a reply whose length may differ, name -> largest length; they have one dimension."""
    fault: Callable[[Mapping[str, FlatTensor]], str | None] | None = None
    """Returns what is wrong with a reply's tensors, where a check for finite numbers is not enough."""
    of_round: Callable[[State], Algorithm] | None = None
    """Returns the algorithm for the round that begins in a state, if its aggregator or its
    `client_config` depends on that state."""
    recipe: Recipe | None = field(default=None, compare=False, repr=False)
    """How a builder made it; see `recipe_of`."""

    @property
    def client_is_an_object(self) -> bool:
        """Whether the client's half exists only in the process that made the algorithm."""
        return self.client is not None and not isinstance(self.client, str)

    def at(self, state: State) -> Algorithm:
        """Return the algorithm of the round that begins in this state."""
        return self if self.of_round is None else self.of_round(state)
