"""A run's privacy guarantee as text: unit, neighbours, sampling, delta, mechanism."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .example_plan import ExamplePlan
from .mechanism_words import MECHANISMS
from .plan import PrivacyPlan

__all__ = ["claim_of", "upwards"]


def claim_of(plan: PrivacyPlan | ExamplePlan, releases: int, repeated: Sequence[int] = ()) -> str:
    """Return the guarantee after `releases` releases; `repeated` has, for each round that was
    released more than once, the number of its releases."""
    if isinstance(plan, ExamplePlan):
        return _claim_of_examples(plan, releases)
    epsilon = plan.epsilon(releases, repeated)
    words = MECHANISMS[plan.noise]
    bound = f"epsilon = {upwards(epsilon)}" if math.isfinite(epsilon) else "no finite epsilon"
    return (
        f"The params of every round are differentially private with {bound} and "
        f"delta = {plan.delta:g}. Unit: a client with all of its data. Neighbours: "
        f"{plan.relation}.{_any_two(plan, releases)} "
        f"Sampling: {_sampling(plan, releases, repeated)}. Mechanism: {releases} {words.released}, "
        f"{_clipping(plan)}, with {words.noise} of multiplier "
        f"{plan.noise_multiplier:.6g}{_correlation(plan)}, added by {words.adder}. "
        "Who took part, traffic and durations are not covered."
    )


def _claim_of_examples(plan: ExamplePlan, releases: int) -> str:
    epsilon, terms = plan.epsilon(releases), plan.terms
    bound = f"epsilon = {upwards(epsilon)}" if math.isfinite(epsilon) else "no finite epsilon"
    return (
        f"What clients sent is differentially private with {bound} and delta = "
        f"{plan.delta:g}, against the server too. Unit: one example of a client's training "
        "data; a client with all of its data is not protected. Neighbours: "
        f"{plan.relation}. Sampling: each example was in a step's batch with probability "
        f"{terms.rate:.4g}, independently and secretly; no assumption is made about how cohorts "
        f"were drawn: a client may have taken part in every round. Mechanism: {releases} rounds of "
        f"{terms.steps(plan.epochs)} steps of DP-SGD on the client, every example's gradient "
        f"clipped to an L2 norm of {terms.clip_norm:g}, with Gaussian noise of multiplier "
        f"{terms.noise_multiplier:.6g}. The numbers of examples, who took part, traffic and "
        "durations are not covered."
    )


def _any_two(plan: PrivacyPlan, releases: int) -> str:
    if not plan.noise_terms.is_local:
        return ""
    epsilon = plan.epsilon_of_any_two(releases)
    bound = (
        f"epsilon = {upwards(epsilon)}" if math.isfinite(epsilon) else "there is no finite epsilon"
    )
    return f" For neighbours that send any other updates in their place, {bound}."


def _sampling(plan: PrivacyPlan, releases: int, repeated: Sequence[int]) -> str:
    if plan.sampling == "poisson":
        again = f"; {len(repeated)} rounds were released again, with the same clients"
        return (
            f"each client took part in a round with probability {plan.probability:.4g}, "
            f"independently and unknown to those who see the params{again if repeated else ''}"
        )
    if not plan.has_min_separation or plan.released_by_clients:
        return (
            "no assumption is made about how cohorts were drawn: a client may have taken part in every "
            "round"
        )
    repeats = sum(repeated) - len(repeated)
    times = plan.counted(releases - repeats)
    again = f", and {repeats} of the releases repeated a round" if repeats else ""
    return (
        "no assumption is made about how cohorts were drawn, except that the server let the same "
        f"client take part again after {plan.separation} rounds at the earliest and {times} times "
        f"at most{again}"
    )


def _clipping(plan: PrivacyPlan) -> str:
    if plan.noise == "local_laplace":
        return f"clipped to an L1 norm of {plan.clipping.clip_norm:g}"
    return {
        "fixed": f"clipped to an L2 norm of {plan.clipping.clip_norm:g}",
        "per_layer": f"clipped tensor by tensor to an L2 norm of {plan.clipping.clip_norm:g} together",
        "adaptive": "clipped to a norm that follows a quantile, itself released with noise",
    }[plan.clipping.kind]


def _correlation(plan: PrivacyPlan) -> str:
    if plan.correlation is None:
        return ""
    return (
        f" for one participation of a client, correlated over {plan.correlation.separation} rounds "
        f"({plan.correlation.kind})"
    )


def upwards(value: float) -> str:
    """Return a number with four decimals, rounded up: a claim is never rounded down."""
    return f"{math.ceil(value * 1e4 - 1e-9) / 1e4:g}"
