"""What a mechanism released in one round: the only thing that an accountant looks at."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....strategies.algorithms.bounds import require_number, require_whole
from ..correlated.correlation import Correlation
from .gaussian import cost_of

__all__ = [
    "ConcentratedEvent",
    "Event",
    "GaussianEvent",
    "LaplaceEvent",
    "PoissonEvent",
    "SeparatedEvent",
    "StepsEvent",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianEvent:
    """A sum to which every client adds a vector of L2 norm <= C, plus N(0, (z C)^2) a coordinate.

    `noise_multiplier` is z: the noise's standard deviation divided by the sensitivity C, for
    neighbours one of which lacks one client's vector.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number("noise_multiplier", self.noise_multiplier, above=0)

    @property
    def cost(self) -> float:
        """What one release costs; costs of releases add up."""
        return cost_of(self.noise_multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcentratedEvent:
    """A sum whose Renyi divergences are at most a Gaussian one's: order / (2 z^2) of every order.

    `noise_multiplier` is z, for neighbours as with `GaussianEvent`; distributed Skellam noise
    releases this.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number("noise_multiplier", self.noise_multiplier, above=0)

    @property
    def cost(self) -> float:
        """What one release costs; costs of releases add up."""
        return cost_of(self.noise_multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceEvent:
    """A vector of L1 norm <= C plus Laplace noise of standard deviation z C a coordinate.

    `noise_multiplier` is z: the release is (sqrt(2) / z)-private, without a delta.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number("noise_multiplier", self.noise_multiplier, above=0)

    @property
    def epsilon(self) -> float:
        """What one release spends."""
        return math.sqrt(2.0) / self.noise_multiplier

    @property
    def cost(self) -> float:
        """What one release costs; costs of releases add up."""
        return self.epsilon**2


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonEvent:
    """A Gaussian sum of a cohort that each client joined by its own coin, secretly.

    `probability` is the coin's; it must not depend on who is there.
    """

    probability: float
    event: GaussianEvent

    def __post_init__(self) -> None:
        require_number("probability", self.probability, above=0, at_most=1)

    def noised(self, times: int) -> PoissonEvent:
        """Return what it is to release the sum of one cohort so often, each time with other noise.

        The coin falls once for all of them: together they are one Gaussian sum with less noise. That
        costs more than as many cohorts would.
        """
        require_whole("times", times, at_least=1)
        less = GaussianEvent(noise_multiplier=self.event.noise_multiplier / math.sqrt(times))
        return PoissonEvent(probability=self.probability, event=less)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsEvent:
    """So many releases in one round, each after the ones before it."""

    steps: int
    event: PoissonEvent

    def __post_init__(self) -> None:
        require_whole("steps", self.steps, at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedEvent:
    """What a run releases of a client each time that it takes part, by turns.

    Between two such rounds are `separation` at least, and there are `participations_max` at most.
    With correlated noise the run releases C x + z, row by row; what a client adds to it each time
    is a column of C, of norm <= 1, and no two of its columns share a row. So each time is one
    Gaussian release, whatever the correlation: what it costs is `event`'s.
    """

    event: GaussianEvent
    separation: int
    participations_max: int | None
    correlation: Correlation | None


Event = (
    GaussianEvent | ConcentratedEvent | LaplaceEvent | PoissonEvent | StepsEvent | SeparatedEvent
)
