"""A run's privacy plan: the one object that defines its sampler, clipping, noise and event."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ...errors import ConfigError
from ...randomness.entropy import Entropy, system_entropy
from ...strategies.algorithms.bounds import require_choice, require_number, require_whole
from .accounting.accountant import (
    Accountant,
    Draws,
    counted_as,
    epsilon_of,
    epsilon_of_draws,
    epsilon_of_many,
)
from .accounting.composition import Releases
from .accounting.events import (
    ConcentratedEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonEvent,
    SeparatedEvent,
)
from .correlated.correlation import Correlation
from .correlated.noise_memory import NoisePast
from .mechanism_words import MECHANISMS
from .mechanisms.adaptive import AdaptiveClip
from .mechanisms.clipping import Clipping
from .mechanisms.mechanism import PrivateMean
from .mechanisms.sampling import draw_poisson
from .noise_terms import SOURCES, NoiseSource, NoiseTerms
from .plan_rules import (
    clipping_rule,
    cohort_rule,
    correlation_rule,
    reach_rule,
    sampling_rule,
    turns_rule,
)

__all__ = ["PrivacyPlan", "Sampling"]

Sampling = Literal["poisson", "fixed"]
PlanEvent = GaussianEvent | ConcentratedEvent | LaplaceEvent | PoissonEvent | SeparatedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyPlan:
    """Client-level differential privacy, for runs of `rounds` rounds.

    Attributes:
        noise_multiplier: that of everything that a round releases together.
        cohort: the divisor of the sum; with "poisson", the expected size of a cohort.
        population: the number of clients that cohorts are drawn from.
        sampling: "poisson": secret Poisson sampling, each client with probability cohort /
            population, which amplifies privacy. "fixed": cohorts are drawn otherwise, without
            amplification; the accounting presumes the most participations that a client may have.
        noise: who adds it. Noise that clients add protects against a server that knows who takes
            part: it needs "fixed" sampling, and a client is presumed to be in every round.
        separation: with "fixed": the fewest rounds from one participation of a client to the
            next; 1 allows every round.
        participations_max: with "fixed": the most participations of a client, None: as many as
            `separation` allows.
        correlation: the correlation of the rounds' noise; None: it is independent.
        epsilon_max: the run's budget; None is no budget.

    Guarantees: the params of every round, and everything computed from them, are
        (epsilon(rounds), delta)-differentially private for one client, by `relation`.
    """

    noise_multiplier: float
    delta: float
    rounds: int
    cohort: float
    population: int
    sampling: Sampling = "poisson"
    noise: NoiseSource = "server"
    separation: int = 1
    participations_max: int | None = None
    correlation: Correlation | None = None
    clipping: Clipping = field(default_factory=Clipping)
    adaptive: AdaptiveClip | None = None
    epsilon_max: float | None = None
    entropy: Entropy = system_entropy

    def __post_init__(self) -> None:
        require_number("noise_multiplier", self.noise_multiplier, above=0)
        require_number("delta", self.delta, above=0, below=1)
        require_whole("rounds", self.rounds, at_least=1)
        require_number("cohort", self.cohort, above=0)
        require_whole("population", self.population, at_least=1)
        require_choice("sampling", self.sampling, ("poisson", "fixed"))
        if (self.clipping.kind == "adaptive") != (self.adaptive is not None):
            raise ConfigError("adaptive clipping needs an AdaptiveClip, other clipping has none")
        require_whole("min_separation", self.separation, at_least=1)
        if self.participations_max is not None:
            require_whole("participations_max", self.participations_max, at_least=1)
        require_choice("noise", self.noise, SOURCES)
        correlation = "none" if self.correlation is None else self.correlation.kind
        reach = 1 if self.correlation is None else self.correlation.separation
        wrong = {
            "cohort": cohort_rule(self.cohort, self.population),
            "min_separation": reach_rule(self.separation, reach, correlation),
            "clipping": clipping_rule(self.clipping.kind, self.noise, correlation),
            "correlation": correlation_rule(correlation, self.noise),
            "sampling": sampling_rule(self.sampling, self.noise)
            or turns_rule(self.sampling, by_turns=self.has_min_separation),
        }
        for key, sentence in wrong.items():
            if sentence is not None:
                raise ConfigError(f"{key} {sentence}")
        self.mechanism(self.clipping)

    # ------------------------------------------------------------------ sampler, mechanism, event

    @property
    def probability(self) -> float:
        """The probability that a client takes part in a round."""
        return self.cohort / self.population

    @property
    def has_min_separation(self) -> bool:
        """Whether the run enforces min-separation participation, or its noise presumes it."""
        limited = self.separation > 1 or self.participations_max is not None
        return limited or self.correlation is not None

    @property
    def unit(self) -> Literal["client", "record"]:
        """The unit of privacy: a client."""
        return "client"

    @property
    def noise_terms(self) -> NoiseTerms:
        """The noise that instructions announce to clients."""
        return NoiseTerms(source=self.noise, noise_multiplier=self.noise_multiplier)

    @property
    def released_by_clients(self) -> bool:
        """Whether the clients' replies are the round's release, as the clients add the noise."""
        return self.noise != "server"

    def draw(self, present: Sequence[int]) -> list[int] | None:
        """Return a round's cohort by secret Poisson sampling, None with other sampling."""
        if self.sampling != "poisson":
            return None
        return draw_poisson(present, self.probability, self.entropy)

    def mechanism(self, clipping: Clipping, past: NoisePast | None = None) -> PrivateMean:
        """Return the server's mechanism of a round, with its clip and the earlier rounds' noise."""
        noise_multiplier = self.noise_multiplier
        if self.adaptive is not None:
            noise_multiplier = self.adaptive.params_noise_multiplier(noise_multiplier)
        return PrivateMean(
            cohort=float(self.cohort),
            clipping=clipping,
            noise_multiplier=noise_multiplier,
            entropy=self.entropy,
            count_noise_stddev=None if self.adaptive is None else self.adaptive.count_noise_stddev,
            past=past,
        )

    @property
    def event(self) -> PlanEvent:
        """The event that one round releases: the mechanism's event, under the sampling. Without
        Poisson sampling, it is that of one participation."""
        if self.released_by_clients:
            return self.noise_terms.event
        released = self.mechanism(self.clipping).event
        if self.has_min_separation:
            return SeparatedEvent(
                event=released,
                separation=self.separation,
                participations_max=self.participations_max,
                correlation=self.correlation,
            )
        if self.sampling == "fixed":
            return released
        return PoissonEvent(probability=self.probability, event=released)

    # ------------------------------------------------------------------ accounting

    def counted(self, releases: int, repeated: Sequence[int] = ()) -> int:
        """Return the most events that `releases` releases can be for one client.

        `repeated` has, for each round that was released more than once, the number of its
        releases. Each release after a round's first has its own noise, and counts for every client.
        """
        if self.sampling == "poisson" or self.released_by_clients:
            return releases
        repeats = sum(repeated) - len(repeated)
        rounds = releases - repeats
        apart = -(-rounds // self.separation)
        return min(apart, self.participations_max or apart) + repeats

    def asked(self, releases: int, repeated: Sequence[int] = ()) -> Releases:
        """Return the releases as events and counts, for composition with those of other runs."""
        event, count = self.event, self.counted(releases, repeated)
        if isinstance(event, SeparatedEvent):
            return ((event.event, count),)
        if isinstance(event, PoissonEvent):
            return self._draws(event, count - sum(repeated), repeated)
        return ((event, count),)

    def epsilon(self, releases: int | None = None, repeated: Sequence[int] = ()) -> float:
        """Return the epsilon of `releases` releases; of the whole run by default.

        With Poisson sampling, several releases of one round are about the same cohort, and cost
        more than releases of as many rounds.
        """
        count = self.counted(self.rounds if releases is None else releases, repeated)
        event = self.event
        if isinstance(event, PoissonEvent) and repeated:
            return self._epsilon_of_rounds(event, count - sum(repeated), repeated, "least")
        return epsilon_of(event, count=count, delta=self.delta, accountant="least")

    def epsilon_of_any_two(self, releases: int | None = None) -> float:
        """Return the epsilon of local noise for neighbours that differ by replacing one update.

        Two clipped updates differ by at most twice the clip norm; an update and none, by the norm.
        """
        halved = replace(self, noise_multiplier=self.noise_multiplier / 2)
        return halved.epsilon(releases)

    def epsilon_by_then(self, releases: int, repeated: Sequence[int] = ()) -> float:
        """Return an upper bound of `epsilon(...)` that is cheap to compute after every round."""
        count, planned = self.counted(releases, repeated), self.counted(self.rounds)
        event = self.event
        if isinstance(event, PoissonEvent) and repeated:
            once = counted_as(count - sum(repeated), planned)
            return self._epsilon_of_rounds(event, once, repeated, "pld")
        return epsilon_of_many(event, count=count, delta=self.delta, planned=planned)

    def _epsilon_of_rounds(
        self, event: PoissonEvent, once: int, repeated: Sequence[int], accountant: Accountant
    ) -> float:
        """Return the epsilon of `once` rounds that were released once, and of repeated ones."""
        draws = self._draws(event, once, repeated)
        return epsilon_of_draws(draws, delta=self.delta, accountant=accountant)

    @staticmethod
    def _draws(event: PoissonEvent, once: int, repeated: Sequence[int]) -> Draws:
        again = ((event.noised(times), rounds) for times, rounds in Counter(repeated).items())
        return ((event, once), *again)

    @property
    def noise_stddev(self) -> float:
        """The noise's standard deviation on one param of the mean delta, at the first clip norm."""
        noises = self.cohort if self.noise_terms.is_local else 1.0
        noise_multiplier = self.mechanism(self.clipping).noise_multiplier * math.sqrt(noises)
        return noise_multiplier * self.clipping.clip_norm / self.cohort

    def noise_stddev_in_sum(self, rounds: int) -> float:
        """Return the standard deviation of the sum of the noise on one param over `rounds` rounds."""
        unit = self.noise_stddev
        if self.correlation is None:
            return unit * math.sqrt(rounds)
        return unit * math.sqrt(self.correlation.sum_variances(rounds)[-1])

    # ------------------------------------------------------------------ in words

    @property
    def relation(self) -> str:
        """The neighbouring relation, as text. Without a removed client, a cohort of fixed size would
        have another client in its place, and two clients differ by twice the clip norm. So with
        "fixed" sampling, the client stays in the cohort, and its updates are left out."""
        if self.sampling == "poisson":
            return "one client added or removed"
        return "one client's updates left out of every sum, the cohorts being the same"

    @property
    def mechanism_name(self) -> str:
        """A short name of the noise and the clipping."""
        noise = "" if self.correlation is None else f", {self.correlation.kind} noise"
        return f"{MECHANISMS[self.noise].name}, {self.clipping.kind} clipping{noise}"
