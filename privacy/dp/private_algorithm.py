"""An algorithm whose aggregates are private, by a plan; its state remembers clip and noise."""

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
"""In an instruction: the rounds over which noise is correlated; a client that takes part twice
within them pays more than the multiplier says."""


def private_algorithm(plan: PrivacyPlan | ExamplePlan, algorithm: Algorithm) -> Algorithm:
    """Return the algorithm under a plan: whatever it makes of its aggregates is private too.

    With example-level privacy the clients train privately, and the aggregates are plain.

    Raises:
        ConfigError: it needs something else than a mean of updates; or, with one example as the
            unit, its clients send more than the params that training made.
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
            f"strategy {algorithm.name!r} looks at single updates, and differential privacy "
            "is for a noisy sum of them; choose fedavg or fedprox"
        )
    made = _Private(plan, algorithm)
    return replace(algorithm, init=made.init, apply=made.apply, of_round=made.of_round)


class _Private:
    """The parts of an algorithm that differ with a plan of privacy."""

    def __init__(self, plan: PrivacyPlan, algorithm: Algorithm) -> None:
        self._plan = plan
        self._algorithm = algorithm
        self._memory = None if plan.correlation is None else NoiseMemory(plan.correlation)

    def of_round(self, state: State) -> Algorithm:
        """Return the algorithm with the clip and the noise of the next round."""
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
        """Begin with the first clip, before any noise."""
        state = self._algorithm.init(params)
        return self._with_seeds(self._with_clip(state, self._plan.clipping.norm), ())

    def apply(self, state: State, aggregate: Aggregate) -> State:
        """Make the algorithm's step, move the clip, and remember the noise's seed."""
        own = (CLIP_SLOT, SEEDS_SLOT)
        inner = {name: slot for name, slot in state.slots.items() if name not in own}
        norm = self._clipping_in(state).norm
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
        return replace(self._plan.clipping, norm=float(state.slots[CLIP_SLOT][NORM]))

    def _with_clip(self, state: State, norm: float) -> State:
        """Return a state that remembers the clip, where it moves."""
        if self._plan.adaptive is None:
            return state
        slot = {NORM: np.array(norm, np.float64)}
        return replace(state, slots={**state.slots, CLIP_SLOT: slot})

    def _with_seeds(self, state: State, seeds: tuple[bytes, ...]) -> State:
        """Return a state that remembers the seeds of its noise, where later rounds need them."""
        if self._plan.correlation is None:
            return state
        return replace(state, slots={**state.slots, SEEDS_SLOT: seeds_slot(seeds)})
