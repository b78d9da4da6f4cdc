"""An algorithm whose aggregates are private by a plan; its state has the clip and noise seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...errors import ConfigError
from ...strategies.algorithms.algorithm import Aggregate, Algorithm, Params, State
from ...strategies.algorithms.mean import MeanAggregator
from .correlated.noise_memory import NoiseMemory, NoisePast, seeds_in, seeds_slot
from .example_plan import ExamplePlan
from .mechanisms.clipping import Clipping
from .mechanisms.mechanism import NoisyAggregate
from .mechanisms.summed import SummedMean
from .plan import PrivacyPlan

__all__ = ["CLIP_SLOT", "REACH_KEY", "private_algorithm"]

CLIP_SLOT = "dp_clip"
SEEDS_SLOT = "dp_noise"
NORM = "norm"
REACH_KEY = "dp-noise-reach"
"""Key in an instruction: the rounds over which noise is correlated; two participations of a client
within them cost more than the multiplier accounts for."""


def private_algorithm(plan: PrivacyPlan | ExamplePlan, algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with private aggregates, so everything it computes from them is private.

    With example-level privacy, the clients train privately, and the aggregates get no noise.

    Raises:
        ConfigError: the algorithm needs more than a mean of updates; or, with example-level
            privacy, its clients send more than the trained params.
    """
    if isinstance(plan, ExamplePlan):
        if algorithm.auxiliary:
            raise ConfigError(
                f"clients of strategy {algorithm.name!r} send more than DP-SGD's params; choose "
                "fedavg or fedprox"
            )
        return replace(algorithm, client_config={**algorithm.client_config, **plan.terms.record()})
    if not algorithm.linear or not isinstance(algorithm.aggregator, MeanAggregator):
        raise ConfigError(
            f"strategy {algorithm.name!r} uses single updates, and differential privacy releases "
            "only a noisy sum of them; choose fedavg or fedprox"
        )
    made = _Private(plan, algorithm)
    return replace(algorithm, init=made.init, apply=made.apply, of_round=made.of_round)


class _Private:
    """The parts of an algorithm that differ under a privacy plan."""

    def __init__(self, plan: PrivacyPlan, algorithm: Algorithm) -> None:
        self._plan = plan
        self._algorithm = algorithm
        self._memory = None if plan.correlation is None else NoiseMemory(plan.correlation)
        self._of_all_rounds: Algorithm | None = None

    def of_round(self, state: State) -> Algorithm:
        """Return the algorithm with the clip and the noise of the next round: the same one for all
        rounds, where neither depends on the rounds before."""
        if self._remembers:
            return self._of_next_round(state)
        if self._of_all_rounds is None:
            self._of_all_rounds = self._of_next_round(state)
        return self._of_all_rounds

    @property
    def _remembers(self) -> bool:
        """Whether a round's clip or noise depends on earlier rounds."""
        return self._plan.adaptive is not None or self._memory is not None

    def _of_next_round(self, state: State) -> Algorithm:
        plan, clipping, past = self._plan, self._clipping_in(state), None
        if self._memory is not None:
            past = NoisePast(seeds=seeds_in(state.slots[SEEDS_SLOT]), memory=self._memory)
        entries = {**clipping.record(), **plan.noise_terms.record()}
        if plan.correlation is not None:
            entries[REACH_KEY] = plan.correlation.separation
        summed = SummedMean(cohort=plan.cohort)
        return replace(
            self._algorithm,
            client_config={**self._algorithm.client_config, **entries},
            aggregator=summed if plan.released_by_clients else plan.mechanism(clipping, past),
        )

    def init(self, params: Params) -> State:
        """Return the initial state, with the first clip norm and no noise seeds."""
        state = self._algorithm.init(params)
        return self._with_seeds(self._with_clip(state, self._plan.clipping.clip_norm), ())

    def apply(self, state: State, aggregate: Aggregate) -> State:
        """Make the algorithm's step, update the clip norm, and store the noise's seed."""
        if not self._remembers:
            return self._algorithm.apply(state, aggregate)
        own = (CLIP_SLOT, SEEDS_SLOT)
        inner = {name: slot for name, slot in state.slots.items() if name not in own}
        norm = self._clipping_in(state).clip_norm
        moved = self._algorithm.apply(replace(state, slots=inner), aggregate)
        if self._plan.adaptive is not None and isinstance(aggregate, NoisyAggregate):
            assert aggregate.within is not None
            norm = self._plan.adaptive.after(norm, aggregate.within)
        seeds: tuple[bytes, ...] = ()
        if self._plan.correlation is not None:
            assert isinstance(aggregate, NoisyAggregate) and aggregate.seed is not None
            seeds = (*seeds_in(state.slots[SEEDS_SLOT]), aggregate.seed)
        return self._with_seeds(self._with_clip(moved, norm), seeds)

    def _clipping_in(self, state: State) -> Clipping:
        if CLIP_SLOT not in state.slots:
            return self._plan.clipping
        return replace(self._plan.clipping, clip_norm=float(state.slots[CLIP_SLOT][NORM]))

    def _with_clip(self, state: State, norm: float) -> State:
        """Return the state with the clip norm, if that is adaptive."""
        if self._plan.adaptive is None:
            return state
        slot = {NORM: np.array(norm, np.float64)}
        return replace(state, slots={**state.slots, CLIP_SLOT: slot})

    def _with_seeds(self, state: State, seeds: tuple[bytes, ...]) -> State:
        """Return the state with the seeds of its noise, if later rounds need them."""
        if self._plan.correlation is None:
            return state
        return replace(state, slots={**state.slots, SEEDS_SLOT: seeds_slot(seeds)})
