"""What a run asks of every round: who takes part, how long it lasts, when it is enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..algorithms.asynchrony import Asynchrony
from ..algorithms.bounds import require_choice, require_number, require_whole
from ..algorithms.metrics import MetricOfMeans
from .progress import EarlyStopping
from .schedule import RateOfRound
from .selection import Selection

__all__ = ["RoundPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """What holds for every round of a run.

    Attributes:
        cohort: who trains: a fraction in (0, 1] of the connected clients (a float), or a whole
            number of them (an int). Never fewer than `min_clients`.
        min_clients: the quorum: as many must be connected before a round starts, and as many
            must have answered, validly, for it to count.
        deadline_s: what answers later does not count.
        seed: decides the cohorts.
        evaluate_every: rounds between evaluations, federated and central; 0 is never. The last
            round is always evaluated, unless this is 0.
        early_stopping: when to stop before the last round.
        update_norm_max: the largest L2 norm of a client's delta (floating-point
            tensors only); None is no limit.
        selection: how the cohort is drawn among the clients that are there.
        asynchronous: who works when without waiting for each other; None: rounds are synchronous.
            Then `cohort` and `selection` mean nothing, `min_clients` must be connected before the
            first instruction, `deadline_s` is each client's own, and clients evaluate at the end.
        update_norm_policy: how a larger update is treated: "reject" refuses it, "clip"
            scales the delta down to the limit.
        learning_rate: what clients train with in a round, by its number, if not with that of the
            instruction's configuration and its schedule.
        additive_metrics: the metrics that are computed from means that clients report.
    """

    cohort: float | int = 1.0
    min_clients: int = 2
    deadline_s: float = 600.0
    seed: int = 0
    evaluate_every: int = 1
    early_stopping: EarlyStopping | None = None
    update_norm_max: float | None = None
    update_norm_policy: Literal["reject", "clip"] = "reject"
    selection: Selection = field(default_factory=Selection)
    asynchronous: Asynchrony | None = None
    learning_rate: RateOfRound | None = None
    additive_metrics: Mapping[str, MetricOfMeans] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.cohort, int):
            require_whole("cohort", self.cohort, at_least=1)
        else:
            require_number("cohort", self.cohort, above=0, at_most=1)
        require_whole("min_clients", self.min_clients, at_least=1)
        require_number("deadline_s", self.deadline_s, above=0)
        require_whole("seed", self.seed, at_least=0)
        require_whole("evaluate_every", self.evaluate_every, at_least=0)
        if self.update_norm_max is not None:
            require_number("update_norm_max", self.update_norm_max, above=0)
        require_choice("update_norm_policy", self.update_norm_policy, ("reject", "clip"))

    def instructed(self, round_number: int) -> dict[str, float]:
        """Return the entries of a round's train instruction that differ from round to round."""
        return (
            {}
            if self.learning_rate is None
            else {"learning-rate": self.learning_rate(round_number)}
        )

    def evaluates(self, round_number: int, *, last: int) -> bool:
        """Return whether a round's params are evaluated, in a run of `last` rounds."""
        if self.evaluate_every == 0:
            return False
        return round_number % self.evaluate_every == 0 or round_number == last
