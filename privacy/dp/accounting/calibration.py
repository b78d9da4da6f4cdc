"""Computes the noise that a budget needs: the inverse of accounting, by bisection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ....errors import ConfigError
from ....strategies.algorithms.bounds import require_number
from ..noise_terms import NoiseSource, NoiseTerms
from .accountant import epsilon_of
from .events import Event, GaussianEvent, PoissonEvent

if TYPE_CHECKING:
    from ..plan import PrivacyPlan

__all__ = ["calibrate_noise", "rounds_within", "within_budget"]

MULTIPLIER_MIN = 0.05
MULTIPLIER_MAX = 1e5
TOLERANCE = 1e-4
ROUNDS_MAX = 10**6


def calibrate_noise(
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    probability: float | None,
    source: NoiseSource = "server",
) -> float:
    """Return the smallest noise multiplier for which the rounds stay within the budget.

    `probability` is that of Poisson sampling, with noise by the server; None is without
    amplification.

    Guarantees: the run's epsilon is at most `epsilon`, and more with 0.01 % less noise.
    Raises:
        ConfigError: no multiplier up to `MULTIPLIER_MAX` is enough.
    """
    require_number("epsilon", epsilon, above=0)

    def spent(noise_multiplier: float) -> float:
        released = NoiseTerms(source=source, noise_multiplier=noise_multiplier).event
        event: Event = released
        if probability is not None and isinstance(released, GaussianEvent):
            event = PoissonEvent(probability=probability, event=released)
        return epsilon_of(event, count=rounds, delta=delta)

    high = 1.0
    while spent(high) > epsilon:
        high *= 2
        if high > MULTIPLIER_MAX:
            raise ConfigError(
                f"no noise_multiplier up to {MULTIPLIER_MAX:g} keeps {rounds} rounds within "
                f"epsilon = {epsilon:g} at delta = {delta:g}; raise epsilon"
            )
    return _bisect(lambda noise_multiplier: spent(noise_multiplier) <= epsilon, high)


def within_budget(plan: PrivacyPlan, epsilon: float) -> PrivacyPlan:
    """Return the plan with the smallest noise for which its rounds stay within the budget.

    Raises:
        ConfigError: no noise multiplier is enough.
    """
    drawn = plan.probability if plan.sampling == "poisson" else None
    count = plan.counted(plan.rounds)
    noise = calibrate_noise(
        epsilon=epsilon, delta=plan.delta, rounds=count, probability=drawn, source=plan.noise
    )
    return replace(plan, noise_multiplier=noise)


def rounds_within(event: Event, *, epsilon: float, delta: float) -> int:
    """Return the most releases like `event` that stay within the budget; at most a million."""
    low, high = 0, 1
    while high <= ROUNDS_MAX and epsilon_of(event, count=high, delta=delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if epsilon_of(event, count=middle, delta=delta) <= epsilon:
            low = middle
        else:
            high = middle
    return min(low, ROUNDS_MAX)


def _bisect(enough: Callable[[float], bool], high: float) -> float:
    """Return the smallest value that is enough, rounded up by at most the tolerance."""
    low = high / 2
    while low > MULTIPLIER_MIN and enough(low):
        low, high = low / 2, low
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
