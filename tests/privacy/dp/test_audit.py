"""An audit: many runs with and without one client, told apart as well as the noise allows.

Whoever knows the canary's direction adds up what the releases have of it, and says "took part" above
a threshold. With false positives a and false negatives b, both with 99.9 % confidence, epsilon is
at least ln((1 - delta - b) / a) (Kairouz, Oh, Viswanath 2015). That is below the claim unless the
noise, the sensitivity or the sampling is wrong.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta

from meadow.flower import MemoryTensor
from meadow.privacy.dp.clipping import Clipping
from meadow.privacy.dp.plan import PrivacyPlan
from meadow.strategies.algorithm import Update
from meadow.strategies.fedavg import fedavg

RUNS = 1000
CLIENTS = range(1, 21)
CANARY = 20
DELTA = 1e-3


def plan_of(**changes: Any) -> PrivacyPlan:
    """Return a plan of 3 rounds among 20 clients."""
    parts: dict[str, Any] = {
        "noise_multiplier": 1.0,
        "delta": DELTA,
        "rounds": 3,
        "cohort": 10.0,
        "population": 20,
        "clipping": Clipping(norm=0.5),
    }
    return PrivacyPlan(**{**parts, **changes})


def statistic(plan: PrivacyPlan, *, canary: bool) -> float:
    """Run a federation of clients that push up the first param, the canary far beyond the clip."""
    algorithm = plan.private(fedavg())
    state, seen = algorithm.init({"a": np.zeros(2)}), 0.0
    for _ in range(plan.rounds):
        now = algorithm.at(state)
        drawn = plan.draw(CLIENTS) if plan.sampling == "poisson" else list(CLIENTS)
        total = now.aggregator.zero(state.params)
        for client in drawn:
            change = np.array([0.0, 0.02]) if client != CANARY else np.array([100.0, 0.0])
            if client != CANARY or canary:
                moved = {"a": MemoryTensor(state.params["a"] + change)}
                update = Update(client=client, params=moved, weight=1.0)
                total = now.aggregator.fold(total, [update])
        after = algorithm.apply(state, now.aggregator.finish(total))
        seen += float(after.params["a"][0] - state.params["a"][0])
        state = after
    return seen


def lower_bound(with_canary: NDArray[np.float64], without: NDArray[np.float64]) -> float:
    """Return the largest epsilon that the first halves' best threshold proves on the others."""
    half = len(without) // 2
    thresholds = np.quantile(without[:half], [0.5, 0.8, 0.9, 0.95, 0.98])
    found = [_proven(with_canary[:half], without[:half], each) for each in thresholds]
    best = thresholds[int(np.argmax(found))]
    return _proven(with_canary[half:], without[half:], float(best))


def _proven(inside: NDArray[np.float64], outside: NDArray[np.float64], threshold: float) -> float:
    alarms = _at_most(int((outside > threshold).sum()), len(outside))
    misses = _at_most(int((inside <= threshold).sum()), len(inside))
    return math.log(max(1 - DELTA - misses, 1e-9) / alarms)


def _at_most(count: int, total: int) -> float:
    """Return what a probability is at most (Clopper, Pearson 1934), with 99.9 % confidence."""
    return float(beta.ppf(0.999, count + 1, total - count)) if count < total else 1.0


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_the_measured_epsilon_is_below_the_claimed(sampling: Any) -> None:
    """And not trivially so: the canary is seen."""
    plan = plan_of(sampling=sampling)
    runs = [
        np.array([statistic(plan, canary=canary) for _ in range(RUNS)]) for canary in (True, False)
    ]
    measured = lower_bound(*runs)
    assert 0.2 < measured <= plan.epsilon()


def test_it_finds_noise_that_is_too_small() -> None:
    """A run with a quarter of the noise that is accounted for is caught."""
    claimed = plan_of(sampling="fixed", noise_multiplier=4.0)
    faulty = plan_of(sampling="fixed", noise_multiplier=4.0 / 4)
    runs = [
        np.array([statistic(faulty, canary=canary) for _ in range(RUNS)])
        for canary in (True, False)
    ]
    assert lower_bound(*runs) > claimed.epsilon()
