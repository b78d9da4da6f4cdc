"""What a mechanism released in one round: the only thing that an accountant looks at."""

from __future__ import annotations

from dataclasses import dataclass

from ...strategies.bounds import require_number
from .correlation import Correlation

__all__ = ["Event", "GaussianEvent", "PoissonEvent", "SeparatedEvent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianEvent:
    """A sum to which every client adds a vector of L2 norm <= C, plus N(0, (z C)^2) a coordinate.

    `noise_multiplier` is z: the noise's standard deviation divided by the sensitivity C, for
    neighbours one of which lacks one client's vector.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number("noise_multiplier", self.noise_multiplier, above=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonEvent:
    """A Gaussian sum of a cohort that each client joined by its own coin, secretly.

    `probability` is the coin's; it must not depend on who is there.
    """

    probability: float
    event: GaussianEvent

    def __post_init__(self) -> None:
        require_number("probability", self.probability, above=0, at_most=1)


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


Event = GaussianEvent | PoissonEvent | SeparatedEvent
