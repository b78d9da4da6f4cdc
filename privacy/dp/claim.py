"""What a run promises, in words: unit, neighbours, sampling, delta, mechanism."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan import PrivacyPlan

__all__ = ["claim_of"]


def claim_of(plan: PrivacyPlan, releases: int, repeats: int) -> str:
    """Say what holds after so many releases, `repeats` of them of rounds that had been released."""
    epsilon = plan.epsilon(releases, repeats)
    bound = f"epsilon = {_up(epsilon)}" if math.isfinite(epsilon) else "no finite epsilon"
    return (
        f"The params of every round are differentially private with {bound} and "
        f"delta = {plan.delta:g}. Unit: a client with all of its data. Neighbours: "
        f"{plan.relation}. "
        f"Sampling: {_sampling(plan, releases, repeats)}. Mechanism: {releases} noisy sums of client "
        f"updates, {_clipping(plan)}, with Gaussian noise of multiplier "
        f"{plan.noise_multiplier:.6g}{_correlation(plan)}, added by the server, which "
        "is trusted. Who took part, traffic and durations are not covered."
    )


def _sampling(plan: PrivacyPlan, releases: int, repeats: int) -> str:
    if plan.sampling == "poisson":
        return (
            f"each client took part in a round with probability {plan.probability:.4g}, "
            "independently and unknown to whoever sees the params"
        )
    if not plan.is_by_turns:
        return (
            "nothing is presumed of how cohorts were drawn: a client may have taken part in every "
            "round"
        )
    times = plan.counted(releases - repeats)
    again = f", and {repeats} rounds were released twice" if repeats else ""
    return (
        "nothing is presumed of how cohorts were drawn, but that the same client was asked "
        f"{plan.separation} rounds later at the earliest and {times} times at most, which the "
        f"server saw to{again}"
    )


def _clipping(plan: PrivacyPlan) -> str:
    return {
        "fixed": f"clipped to an L2 norm of {plan.clipping.norm:g}",
        "per_layer": f"clipped tensor by tensor to an L2 norm of {plan.clipping.norm:g} together",
        "adaptive": "clipped to a norm that follows a quantile, itself released with noise",
    }[plan.clipping.kind]


def _correlation(plan: PrivacyPlan) -> str:
    if plan.correlation is None:
        return ""
    return (
        f" for a client's taking part once, correlated over {plan.correlation.separation} rounds "
        f"({plan.correlation.kind})"
    )


def _up(value: float) -> str:
    """Return a number with four decimals, rounded up: a claim is never rounded down."""
    return f"{math.ceil(value * 1e4 - 1e-9) / 1e4:g}"
