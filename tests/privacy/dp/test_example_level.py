"""What DP-SGD's steps spend: dp-accounting's figures, and nothing less."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meadow.client.owner.example_budget import Release, record_epsilon
from meadow.errors import ConfigError, ProtocolError
from meadow.privacy.dp.accounting.accountant import epsilon_of
from meadow.privacy.dp.example_level import EXAMPLE_ORDERS, ExampleTerms, sampled_divergences
from meadow.privacy.dp.example_plan import ExamplePlan
from meadow.privacy.dp.private_algorithm import private_algorithm
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.algorithms.scaffold import scaffold

dp = pytest.importorskip("dp_accounting")
TERMS = ExampleTerms(clip_norm=1.0, noise_multiplier=1.1, rate=0.02)


def plan_of(**changes: Any) -> ExamplePlan:
    """Return a plan of ten rounds."""
    return ExamplePlan(**{"terms": TERMS, "delta": 1e-5, "rounds": 10, "epochs": 2, **changes})


@pytest.mark.parametrize(("rate", "noise"), [(0.004, 1.1), (0.02, 0.8), (0.3, 4.0), (1.0, 2.0)])
def test_a_steps_divergences_are_dp_accountings(rate: float, noise: float) -> None:
    """At every whole order: so the client needs no dp-accounting to keep its books."""
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(orders=list(EXAMPLE_ORDERS))
    accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), 300)
    event = ExampleTerms(clip_norm=1.0, noise_multiplier=noise, rate=rate).event(1)
    release = Release(rounds=300, cost=None, steps=event.__class__(steps=1, event=event.event))
    theirs = accountant.get_epsilon(1e-5)
    assert record_epsilon([release], 1e-5) == pytest.approx(theirs, rel=1e-6)
    assert len(sampled_divergences(rate, noise)) == 255


def test_a_plan_spends_what_its_steps_do() -> None:
    """Rounds times steps; the client's own figure, by divergences, is a little larger."""
    plan = plan_of()
    assert plan.event.steps == 100 and plan.event.event.probability == 0.02
    assert plan.epsilon() == epsilon_of(plan.event.event, count=1000, delta=1e-5)
    clients = record_epsilon([Release(rounds=10, cost=None, steps=plan.event)], 1e-5)
    assert plan.epsilon() < clients < 1.3 * plan.epsilon()
    assert plan.epsilon(3) <= plan.epsilon_by_then(3) <= plan.epsilon(4)


def test_noise_for_the_client_hides_its_records_too() -> None:
    """The better of both counts, and rounds without noise make it infinite."""
    steps = TERMS.event(2)
    both = record_epsilon([Release(rounds=5, cost=0.01, steps=steps)], 1e-5)
    client = record_epsilon([Release(rounds=5, cost=0.01, steps=None)], 1e-5)
    alone = record_epsilon([Release(rounds=5, cost=None, steps=steps)], 1e-5)
    assert both <= min(client, alone)
    assert math.isinf(record_epsilon([Release(rounds=1, cost=None, steps=None)], 1e-5))
    assert record_epsilon([], 1e-5) == 0.0


def test_it_makes_algorithms_private() -> None:
    """Clients are told; those that would send more than params are refused."""
    told = private_algorithm(plan_of(), fedavg()).client_config
    assert ExampleTerms.of(told) == TERMS and ExampleTerms.of({}) is None
    with pytest.raises(ConfigError, match="'scaffold' send more"):
        private_algorithm(plan_of(), scaffold())


@pytest.mark.parametrize(
    "changes", [{"clip": 0.0}, {"rate": 1.5}, {"noise": None}, {"rate": math.nan}, {"clip": 1}]
)
def test_terms_that_cannot_be(changes: dict[str, Any]) -> None:
    """Part of them, or numbers that are none."""
    parts = {"clip": 1.0, "noise": 1.0, "rate": 0.5, **changes}
    names = {"clip": "clip", "noise": "noise-multiplier", "rate": "sampling-rate"}
    said = {f"dp-record-{names[key]}": value for key, value in parts.items() if value is not None}
    with pytest.raises(ProtocolError, match="must be a number from"):
        ExampleTerms.of(said)
