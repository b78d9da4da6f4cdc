"""Events: what a mechanism released in one round; accountants use nothing else."""

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
    """A sum of one vector per client, of L2 norm <= C, plus N(0, (z C)^2) per coordinate.

    `noise_multiplier` is z: the noise's standard deviation divided by the sensitivity C, for
    neighbours that differ by one client's vector, added or removed.
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
    """A sum whose Renyi divergence of each order is at most a Gaussian sum's: order / (2 z^2).

    `noise_multiplier` is z, for the neighbours of `GaussianEvent`; it is the event of distributed
    noise.
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
    """A vector of L1 norm <= C plus Laplace noise of standard deviation z C per coordinate.

    `noise_multiplier` is z: the release is (sqrt(2) / z)-private, with delta = 0.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number("noise_multiplier", self.noise_multiplier, above=0)

    @property
    def epsilon(self) -> float:
        """The epsilon of one release."""
        return math.sqrt(2.0) / self.noise_multiplier

    @property
    def cost(self) -> float:
        """What one release costs; costs of releases add up."""
        return self.epsilon**2


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonEvent:
    """A Gaussian sum of a cohort that was drawn by secret Poisson sampling.

    Each client is in the cohort with `probability`, which must not depend on the other clients.
    """

    probability: float
    event: GaussianEvent

    def __post_init__(self) -> None:
        require_number("probability", self.probability, above=0, at_most=1)

    def noised(self, times: int) -> PoissonEvent:
        """Return the event of `times` releases of the same cohort's sum, with independent noise.

        As the cohort is sampled once, they are together one Gaussian sum with less noise, which
        costs more than releases of `times` independently sampled cohorts.
        """
        require_whole("times", times, at_least=1)
        less = GaussianEvent(noise_multiplier=self.event.noise_multiplier / math.sqrt(times))
        return PoissonEvent(probability=self.probability, event=less)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsEvent:
    """A sequence of `steps` releases in one round, each of which may depend on earlier ones."""

    steps: int
    event: PoissonEvent

    def __post_init__(self) -> None:
        require_whole("steps", self.steps, at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedEvent:
    """The release of one participation of a client, under min-separation participation.

    Two participations of a client are at least `separation` rounds apart, and there are at most
    `participations_max`. With correlated noise the run releases C x + z, row by row; each
    participation adds a column of C, of norm <= 1, and no two of the client's columns share a row.
    So each participation costs one `event`, for every correlation.
    """

    event: GaussianEvent
    separation: int
    participations_max: int | None
    correlation: Correlation | None


Event = (
    GaussianEvent | ConcentratedEvent | LaplaceEvent | PoissonEvent | StepsEvent | SeparatedEvent
)
