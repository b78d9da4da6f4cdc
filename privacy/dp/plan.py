"""A run's plan of privacy: one object from which sampler, clipping, noise and event are all made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from ...errors import ConfigError
from ...strategies.algorithm import Aggregate, Algorithm, Params, State
from ...strategies.bounds import require_choice, require_number, require_whole
from ...strategies.mean import MeanAggregator
from ..entropy import Entropy, system_entropy
from .accountant import epsilon_of, epsilon_of_many
from .adaptive import AdaptiveClip
from .announced import SOURCES, AnnouncedNoise, NoiseSource
from .clipping import Clipping
from .events import Event, PoissonEvent
from .mechanism import NoisyAggregate, PrivateMean
from .mechanism_words import MECHANISMS
from .sampling import draw_poisson
from .summed import SummedMean

__all__ = ["CLIP_SLOT", "PrivacyPlan", "Sampling", "upwards"]

Sampling = Literal["poisson", "fixed"]
CLIP_SLOT = "dp_clip"
NORM = "norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyPlan:
    """Differential privacy with the client as the unit, for runs of so many rounds.

    Attributes:
        noise_multiplier: of all that a round releases together.
        cohort: the divisor of the sum; with "poisson", what a draw has on average.
        population: among how many clients cohorts are drawn.
        sampling: "poisson": every client tosses a coin with probability cohort / population, and
            that amplifies privacy. "fixed": cohorts are drawn otherwise, and no amplification is
            claimed: a client is accounted for as if it took part in every round.
        noise: who adds it; by clients it goes with "fixed" sampling and without adaptive clipping.
        epsilon_max: what the run may spend; None is whatever the rounds cost.

    Guarantees: the params of every round, and whatever is computed from them, are
        (epsilon(rounds), delta)-differentially private for one client, by `relation`.
    """

    noise_multiplier: float
    delta: float
    rounds: int
    cohort: float
    population: int
    sampling: Sampling = "poisson"
    noise: NoiseSource = "server"
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
        if self.cohort > self.population:
            raise ConfigError(
                f"cohort must be <= population, got {self.cohort:g} of {self.population}"
            )
        if (self.clipping.kind == "adaptive") != (self.adaptive is not None):
            raise ConfigError("adaptive clipping needs an AdaptiveClip, and no other has one")
        require_choice("noise", self.noise, SOURCES)
        if self.noise != "server" and (self.sampling != "fixed" or self.adaptive is not None):
            raise ConfigError(
                f'noise = "{self.noise}" is against a server that knows who takes part: it needs '
                'sampling = "fixed", and a clip that does not move'
            )
        self.mechanism(self.clipping)

    # ------------------------------------------------------------------ sampler, mechanism, event

    @property
    def probability(self) -> float:
        """The probability with which a client takes part in a round."""
        return self.cohort / self.population

    @property
    def unit(self) -> str:
        """Whose data are hidden: a client's."""
        return "client"

    def draw(self, present: Sequence[int]) -> list[int] | None:
        """Return a round's cohort by secret coins, None if that is not what is accounted for."""
        if self.sampling != "poisson":
            return None
        return draw_poisson(present, self.probability, self.entropy)

    @property
    def announced(self) -> AnnouncedNoise:
        """What clients are told of the noise."""
        return AnnouncedNoise(source=self.noise, multiplier=self.noise_multiplier)

    @property
    def released_by_clients(self) -> bool:
        """Whether a round is released by its clients, as they answer."""
        return self.noise != "server"

    def mechanism(self, clipping: Clipping) -> PrivateMean:
        """Return the server's mechanism of a round with this clip."""
        multiplier = self.noise_multiplier
        if self.adaptive is not None:
            multiplier = self.adaptive.params_multiplier(multiplier)
        return PrivateMean(
            cohort=float(self.cohort),
            clipping=clipping,
            noise_multiplier=multiplier,
            entropy=self.entropy,
            count_stddev=None if self.adaptive is None else self.adaptive.count_stddev,
        )

    @property
    def event(self) -> Event:
        """What one round releases: the mechanism's own event, as it is sampled."""
        if self.released_by_clients:
            return self.announced.event
        released = self.mechanism(self.clipping).event
        if self.sampling == "fixed":
            return released
        return PoissonEvent(probability=self.probability, event=released)

    # ------------------------------------------------------------------ accounting

    def epsilon(self, releases: int | None = None) -> float:
        """Return the epsilon of so many releases; of the whole run by default."""
        count = self.rounds if releases is None else releases
        return epsilon_of(self.event, count=count, delta=self.delta)

    def epsilon_by_then(self, releases: int) -> float:
        """Return an upper bound of `epsilon(releases)`, cheap to ask for after every round."""
        return epsilon_of_many(self.event, count=releases, delta=self.delta, planned=self.rounds)

    @property
    def noise_stddev(self) -> float:
        """The noise's standard deviation on one param of the mean change, at the first clip."""
        noises = self.cohort if self.announced.is_local else 1.0
        multiplier = self.mechanism(self.clipping).noise_multiplier * math.sqrt(noises)
        return multiplier * self.clipping.norm / self.cohort

    # ------------------------------------------------------------------ the algorithm

    def private(self, algorithm: Algorithm) -> Algorithm:
        """Return the algorithm with private aggregates: whatever it makes of them is private too.

        Raises:
            ConfigError: it needs something else than a mean of updates.
        """
        if not algorithm.linear or not isinstance(algorithm.aggregator, MeanAggregator):
            raise ConfigError(
                f"strategy {algorithm.name!r} looks at single updates, and differential privacy "
                "is for a noisy sum of them; choose fedavg or fedprox"
            )

        def of_round(state: State) -> Algorithm:
            clipping = self._clipping_in(state)
            told = {**clipping.record(), **self.announced.record()}
            server = self.mechanism(clipping)
            return replace(
                algorithm,
                client_config={**algorithm.client_config, **told},
                aggregator=SummedMean(cohort=self.cohort) if self.released_by_clients else server,
            )

        def init(params: Params) -> State:
            state = algorithm.init(params)
            return self._with_clip(state, self.clipping.norm)

        def apply(state: State, aggregate: Aggregate) -> State:
            inner = {name: slot for name, slot in state.slots.items() if name != CLIP_SLOT}
            norm = self._clipping_in(state).norm
            moved = algorithm.apply(replace(state, slots=inner), aggregate)
            if self.adaptive is not None and isinstance(aggregate, NoisyAggregate):
                assert aggregate.within is not None
                norm = self.adaptive.after(norm, aggregate.within)
            return self._with_clip(moved, norm)

        return replace(algorithm, init=init, apply=apply, of_round=of_round)

    def _clipping_in(self, state: State) -> Clipping:
        if CLIP_SLOT not in state.slots:
            return self.clipping
        return replace(self.clipping, norm=float(state.slots[CLIP_SLOT][NORM]))

    def _with_clip(self, state: State, norm: float) -> State:
        """Return a state that remembers the clip, where it moves."""
        if self.adaptive is None:
            return state
        slot = {NORM: np.array(norm, np.float64)}
        return replace(state, slots={**state.slots, CLIP_SLOT: slot})

    # ------------------------------------------------------------------ in words

    @property
    def relation(self) -> str:
        """How neighbours differ. A cohort of fixed size would draw somebody else in the place of a
        client that is gone, and two clients differ by twice the clip: so there the client stays,
        and says nothing."""
        if self.sampling == "poisson":
            return "one client added or removed"
        return "one client's updates left out of every sum, the cohorts being the same"

    def claim(self, releases: int) -> str:
        """Say what holds after so many releases: unit, relation, sampling, delta, mechanism."""
        epsilon = self.epsilon(releases)
        bound = f"epsilon = {upwards(epsilon)}" if math.isfinite(epsilon) else "no finite epsilon"
        drawn = {
            "poisson": "each client took part in a round with probability "
            f"{self.probability:.4g}, independently and unknown to whoever sees the params",
            "fixed": "nothing is presumed of how cohorts were drawn: a client may have taken part "
            "in every round",
        }[self.sampling]
        clip = {
            "fixed": f"clipped to an L2 norm of {self.clipping.norm:g}",
            "per_layer": f"clipped tensor by tensor to an L2 norm of {self.clipping.norm:g} together",
            "adaptive": "clipped to a norm that follows a quantile, itself released with noise",
        }[self.clipping.kind]
        if self.noise == "local_laplace":
            clip = f"clipped to an L1 norm of {self.clipping.norm:g}"
        words = MECHANISMS[self.noise]
        return (
            f"The params of every round are differentially private with {bound} and "
            f"delta = {self.delta:g}. Unit: a client with all of its data. Neighbours: "
            f"{self.relation}. "
            f"Sampling: {drawn}. Mechanism: {releases} {words.released}, {clip}, with "
            f"{words.noise} of multiplier {self.noise_multiplier:.6g}, added by {words.adder}. "
            "Who took part, traffic and durations are not covered."
        )

    @property
    def mechanism_name(self) -> str:
        """The noise and the clipping, in short."""
        return f"{MECHANISMS[self.noise].name}, {self.clipping.kind} clipping"


def upwards(value: float) -> str:
    """Return a number with four decimals, rounded up: a claim is never rounded down."""
    return f"{math.ceil(value * 1e4 - 1e-9) / 1e4:g}"
