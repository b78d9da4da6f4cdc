"""A plan: sampler, clipping, noise and event are made of the same numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meadow.errors import ConfigError
from meadow.privacy.dp.accounting.events import GaussianEvent, PoissonEvent
from meadow.privacy.dp.claim import claim_of
from meadow.privacy.dp.mechanisms.adaptive import AdaptiveClip
from meadow.privacy.dp.mechanisms.clipping import Clipping
from meadow.privacy.dp.mechanisms.mechanism import NoisyAggregate
from meadow.privacy.dp.mechanisms.sampling import draw_poisson
from meadow.privacy.dp.noise_terms import NOISE_KEY
from meadow.privacy.dp.plan import PrivacyPlan
from meadow.privacy.dp.private_algorithm import private_algorithm
from meadow.randomness.entropy import system_entropy
from meadow.strategies.algorithms.algorithm import Algorithm
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.algorithms.fedprox import fedprox


def plan_of(**changes: Any) -> PrivacyPlan:
    """Return a plan of 100 rounds with 50 of 1,000 clients."""
    parts: dict[str, Any] = {
        "noise_multiplier": 1.5,
        "delta": 1e-5,
        "rounds": 100,
        "cohort": 50.0,
        "population": 1000,
    }
    return PrivacyPlan(**{**parts, **changes})


def test_the_event_is_what_is_done() -> None:
    """Amplification is claimed where coins are tossed, with the probability of the coins."""
    poisson, fixed = plan_of(), plan_of(sampling="fixed")
    assert poisson.event == PoissonEvent(
        probability=0.05, event=GaussianEvent(noise_multiplier=1.5)
    )
    assert fixed.event == GaussianEvent(noise_multiplier=1.5)
    assert fixed.epsilon() > 4 * poisson.epsilon()


def test_adaptive_clipping_costs_no_more_than_announced() -> None:
    """The params get more noise, so that together with the count it is the plan's multiplier."""
    plan = plan_of(
        clipping=Clipping(kind="adaptive", clip_norm=0.1),
        adaptive=AdaptiveClip(count_noise_stddev=2.5),
    )
    made = plan.mechanism(plan.clipping)
    assert made.noise_multiplier > 1.5
    assert made.event.noise_multiplier == pytest.approx(1.5)
    with pytest.raises(ConfigError, match="count_noise_stddev must be > noise_multiplier / 2"):
        plan_of(clipping=Clipping(kind="adaptive"), adaptive=AdaptiveClip(count_noise_stddev=0.5))


def test_coins_are_independent_and_of_the_planned_probability() -> None:
    """Cohorts have a binomial size and no client prevails; a cohort of fixed size would fail."""
    drawn = [draw_poisson(range(1, 1001), 0.05, system_entropy) for _ in range(400)]
    sizes = np.array([len(cohort) for cohort in drawn])
    assert sizes.mean() == pytest.approx(50, abs=5 * (47.5 / 400) ** 0.5)
    assert 0.7 < sizes.var() / 47.5 < 1.35
    counts = np.bincount([client for cohort in drawn for client in cohort], minlength=1001)[1:]
    assert counts.min() > 0 and counts.max() < 50
    assert all(cohort == sorted(set(cohort)) for cohort in drawn)


@pytest.mark.parametrize("algorithm", [fedavg(), fedavg(server_optimizer="adam"), fedprox()])
def test_it_makes_algorithms_private(algorithm: Algorithm) -> None:
    """Clients are told the clip and the noise; the aggregate's divisor is the plan's cohort."""
    plan = plan_of()
    private = private_algorithm(plan, algorithm)
    state = private.init({"a": np.zeros(3)})
    now = private.at(state)
    assert now.client_config.items() >= algorithm.client_config.items()
    assert now.client_config["dp-clip-norm"] == 1.0
    assert now.client_config[NOISE_KEY] == 1.5
    assert now.aggregator == plan.mechanism(plan.clipping)
    aggregate = now.aggregator.finish(now.aggregator.zero(state.params))
    assert aggregate.weight == 50.0
    assert private.apply(state, aggregate).round == 1


def test_the_clip_follows_the_quantile() -> None:
    """Too many within it lower the clip, too few raise it, as the rate says; clients hear of it."""
    adaptive = AdaptiveClip(quantile=0.5, rate=0.2, count_noise_stddev=2.5)
    private = private_algorithm(
        plan_of(clipping=Clipping(kind="adaptive", clip_norm=0.1), adaptive=adaptive),
        fedavg(server_optimizer="adam"),
    )
    state = private.init({"a": np.zeros(3)})
    for within, norm in ((1.0, 0.1 * np.exp(-0.1)), (0.0, 0.1)):
        aggregate = NoisyAggregate(mean=state.params, weight=50.0, clients=50, within=within)
        state = private.apply(state, aggregate)
        assert private.at(state).client_config["dp-clip-norm"] == pytest.approx(norm)
        assert private.at(state).aggregator.clipping.clip_norm == pytest.approx(norm)
    assert sorted(state.slots) == ["dp_clip", "first_moment", "second_moment"]


def test_only_means_are_made_private() -> None:
    """A strategy that looks at single updates is refused."""
    with pytest.raises(ConfigError, match="uses single updates"):
        private_algorithm(plan_of(), replace(fedavg(), linear=False))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cohort": 2000.0}, "cohort must be <= population"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be > 0"),
        ({"delta": 1.0}, "delta must be < 1"),
        ({"sampling": "shuffle"}, "sampling must be one of"),
        ({"clipping": Clipping(kind="adaptive")}, "needs an AdaptiveClip"),
    ],
)
def test_wrong_plans(changes: dict[str, Any], says: str) -> None:
    """Each is refused with the bound."""
    with pytest.raises(ConfigError, match=says):
        plan_of(**changes)


def test_the_claim_names_everything() -> None:
    """Unit, neighbours, sampling, delta, mechanism, and what is not covered; rounded upwards."""
    claim = claim_of(plan_of(), 100)
    for part in (
        "a client with all",
        "one client added or removed",
        "probability 0.05",
        "delta = 1e-05",
    ):
        assert part in claim
    for part in ("100 noisy sums", "multiplier 1.5", "server, which is trusted", "not covered"):
        assert part in claim
    assert "left out of every sum" in claim_of(plan_of(sampling="fixed"), 100)
    said = float(claim.partition("epsilon = ")[2].split()[0])
    assert 0 <= said - plan_of().epsilon() < 2e-4
