"""The privacy plan of a run with example-level privacy: its clients train by DP-SGD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...strategies.algorithms.bounds import require_number, require_whole
from .accounting.accountant import epsilon_of, epsilon_of_many
from .accounting.composition import Releases
from .accounting.events import StepsEvent
from .example_level import ExampleTerms

__all__ = ["ExamplePlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamplePlan:
    """Differential privacy of every client's examples, for runs of `rounds` rounds.

    Attributes:
        epochs: the local epochs of a round; see `ExampleTerms.steps`.
        epsilon_max: the run's budget; None is no budget.

    Guarantees: everything that a client sends in all rounds is (epsilon(rounds), delta)-
        differentially private for one of its examples, by `relation`.
    """

    terms: ExampleTerms
    delta: float
    rounds: int
    epochs: int
    epsilon_max: float | None = None
    released_by_clients: bool = True
    unit: Literal["client", "record"] = "record"
    separation: int = 1
    sampling: str = "poisson"
    mechanism_name: str = "DP-SGD on the clients: Gaussian, clipping example by example"

    def __post_init__(self) -> None:
        require_number("delta", self.delta, above=0, below=1)
        require_whole("rounds", self.rounds, at_least=1)
        require_whole("epochs", self.epochs, at_least=1)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of each step."""
        return self.terms.noise_multiplier

    @property
    def probability(self) -> float:
        """The probability that an example is in a step's batch."""
        return self.terms.rate

    @property
    def event(self) -> StepsEvent:
        """The event that one round of a client releases."""
        return self.terms.event(self.epochs)

    def draw(self, present: Sequence[int]) -> None:
        """Return None: the run may draw cohorts in any way, as the accounting does not use it."""

    def counted(self, releases: int, repeated: Sequence[int] = ()) -> int:
        """Return the number of events of `releases` releases: one per release, also if repeated."""
        return releases

    def asked(self, releases: int, repeated: Sequence[int] = ()) -> Releases:
        """Return the releases as events and counts, for composition with those of other runs."""
        return ((self.event.event, self.counted(releases, repeated) * self.event.steps),)

    def epsilon(self, releases: int | None = None, repeated: Sequence[int] = ()) -> float:
        """Return the epsilon of `releases` rounds with the same client; of the run by default."""
        count = self.rounds if releases is None else releases
        return epsilon_of(self.event, count=count, delta=self.delta, accountant="least")

    def epsilon_by_then(self, releases: int, repeated: Sequence[int] = ()) -> float:
        """Return an upper bound of `epsilon(releases)` that is cheap to compute after every round."""
        return epsilon_of_many(self.event, count=releases, delta=self.delta, planned=self.rounds)

    @property
    def relation(self) -> str:
        """The neighbouring relation, as text."""
        return (
            "one example of one client, of which nothing is used, the number of examples being the "
            "same"
        )
