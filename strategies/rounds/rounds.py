"""The interface of rounds: `synchronous_rounds.py` and `asynchronous_rounds.py` implement it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid

from ..algorithms.algorithm import State

__all__ = ["Evaluate", "RoundTerms", "Rounds"]

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
"""Central evaluation: (round, params) -> metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTerms:
    """Settings that all rounds of a run share.

    Attributes:
        last: the number of the last round.
        deadline_s: seconds within which a reply counts.
        train_config, evaluate_config: keys of the instructions beside the algorithm's own.
        evaluate: the central evaluation, if there is one.
    """

    last: int
    deadline_s: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate: Evaluate | None


class Rounds(Protocol):
    """Advances a run, one round at a time."""

    def refuse_misfit(self, grid: Grid) -> None:
        """Raise `ConfigError` if these rounds cannot be run on a grid."""

    def recall(self, state: State) -> State:
        """Take out of a checkpoint's state what was kept beside; return the algorithm's part."""
