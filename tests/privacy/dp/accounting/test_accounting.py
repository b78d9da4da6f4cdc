"""Accounting: epsilon of each event is dp-accounting's, and never less."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting import pld, rdp

from meadow.errors import ConfigError
from meadow.privacy.dp.accounting.accountant import (
    Accountant,
    counted_as,
    epsilon_of,
    epsilon_of_many,
)
from meadow.privacy.dp.accounting.calibration import calibrate_noise, rounds_within
from meadow.privacy.dp.accounting.events import Event, GaussianEvent, PoissonEvent
from meadow.privacy.dp.accounting.gaussian import cost_of, delta_of_cost, epsilon_of_cost

KINDS: tuple[Accountant, ...] = ("pld", "rdp", "least")
EVENTS: list[Event] = [
    GaussianEvent(noise_multiplier=1.0),
    PoissonEvent(probability=0.05, event=GaussianEvent(noise_multiplier=1.0)),
]


def sampled(probability: float, multiplier: float) -> PoissonEvent:
    """Return a Poisson-sampled Gaussian."""
    return PoissonEvent(probability=probability, event=GaussianEvent(noise_multiplier=multiplier))


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 1.411, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-10])
def test_one_gaussian_is_dp_accountings(multiplier: float, delta: float) -> None:
    """The closed form gives the reference's epsilon of the Gaussian mechanism."""
    theirs = dp_accounting.get_epsilon_gaussian(multiplier, delta)
    assert epsilon_of_cost(cost_of(multiplier), delta) == pytest.approx(theirs, rel=1e-6, abs=1e-9)


def test_many_gaussians_are_one() -> None:
    """Composition agrees with the reference's numerical one, which rounds upwards."""
    accountant = pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(4.0), 100)
    ours = epsilon_of(GaussianEvent(noise_multiplier=4.0), count=100, delta=1e-6)
    assert ours == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-3)


@pytest.mark.parametrize(("probability", "multiplier", "count"), [(0.05, 1.0, 100), (0.5, 3.0, 20)])
def test_a_sampled_gaussian_is_dp_accountings(
    probability: float, multiplier: float, count: int
) -> None:
    """PLD and RDP are those of the reference, and PLD is the tighter of the two bounds."""
    event = dp_accounting.PoissonSampledDpEvent(
        probability, dp_accounting.GaussianDpEvent(multiplier)
    )
    theirs = []
    for accountant in (pld.PLDAccountant(), rdp.RdpAccountant()):
        accountant.compose(event, count)
        theirs.append(accountant.get_epsilon(1e-6))
    mine = sampled(probability, multiplier)
    tight = epsilon_of(mine, count=count, delta=1e-6)
    loose = epsilon_of(mine, count=count, delta=1e-6, accountant="rdp")
    assert tight == pytest.approx(theirs[0], rel=2e-3)
    assert loose == pytest.approx(theirs[1], rel=1e-6)
    assert tight < loose


def test_sampling_everybody_amplifies_nothing() -> None:
    """A coin that always falls the same way is no sampling."""
    assert epsilon_of(sampled(1.0, 2.0), count=5, delta=1e-5) == epsilon_of(
        GaussianEvent(noise_multiplier=2.0), count=5, delta=1e-5
    )


@pytest.mark.parametrize("event", EVENTS)
def test_epsilon_grows(event: Event) -> None:
    """More releases, and a smaller delta, never cost less; none cost nothing."""
    spent = [epsilon_of(event, count=count, delta=1e-6) for count in (0, 1, 5, 40)]
    assert spent[0] == 0
    assert spent == sorted(spent) and spent[-1] > spent[1]
    assert epsilon_of(event, count=5, delta=1e-8) > spent[2]


@pytest.mark.parametrize("planned", [1, 9, 100, 1000])
def test_the_quick_epsilon_is_an_upper_bound(planned: int) -> None:
    """It counts up to a tenth more releases, never fewer, and never more than are planned."""
    for count in range(1, planned + 1):
        assert count <= counted_as(count, planned) <= min(planned, count * 1.1 + 1)
    assert counted_as(planned + 50, planned) >= planned + 50
    event = EVENTS[0]
    quick = epsilon_of_many(event, count=planned, delta=1e-6, planned=planned)
    assert quick == epsilon_of(event, count=planned, delta=1e-6)


@pytest.mark.parametrize("probability", [None, 0.05])
def test_calibration_is_the_inverse(probability: float | None) -> None:
    """The noise keeps the budget, and a hair less noise does not."""
    found = calibrate_noise(epsilon=2.0, delta=1e-6, rounds=200, probability=probability)

    def event(multiplier: float) -> Event:
        released = GaussianEvent(noise_multiplier=multiplier)
        return released if probability is None else sampled(probability, multiplier)

    assert epsilon_of(event(found), count=200, delta=1e-6) <= 2.0
    assert epsilon_of(event(found * 0.999), count=200, delta=1e-6) > 2.0
    assert rounds_within(event(found), epsilon=2.0, delta=1e-6) in (200, 201)


def test_a_budget_that_no_noise_keeps() -> None:
    """It is an error that names the budget."""
    with pytest.raises(ConfigError, match="epsilon = 1e-07"):
        calibrate_noise(epsilon=1e-7, delta=1e-12, rounds=10**6, probability=None)


def test_no_noise_is_no_privacy() -> None:
    """Its cost is infinite, whatever else was spent."""
    assert math.isinf(epsilon_of_cost(cost_of(0.0) + 1.0, 1e-6))
    assert delta_of_cost(0.0, 0.0) == 0.0


@pytest.mark.parametrize(
    ("probability", "multiplier", "count", "delta"),
    [(0.01, 50.0, 10, 1e-5), (0.001, 2.0, 10, 1e-5), (0.001, 10.0, 10_000, 1e-6)],
)
def test_a_small_epsilon_is_not_that_of_the_grid(
    probability: float, multiplier: float, count: int, delta: float
) -> None:
    """Losses are rounded up to a grid that is fine beside epsilon: the reference's own coarse one
    gives 1.2 to 3 times as much."""
    event = dp_accounting.PoissonSampledDpEvent(
        probability, dp_accounting.GaussianDpEvent(multiplier)
    )
    exact, coarse = (
        pld.PLDAccountant(value_discretization_interval=interval).compose(event, count)
        for interval in (1e-6, 1e-3)
    )
    found = epsilon_of(sampled(probability, multiplier), count=count, delta=delta)
    assert exact.get_epsilon(delta) <= found <= 1.05 * exact.get_epsilon(delta)
    assert 1.15 * found < coarse.get_epsilon(delta)


def test_the_least_bound_is_that_of_the_better_accountant() -> None:
    """Over many small releases the grid's roundings add up, and Renyi divergences are lower."""
    event = sampled(0.001, 5.0)
    by_pld, by_rdp, least = (
        epsilon_of(event, count=10**6, delta=1e-9, accountant=each) for each in KINDS
    )
    assert least == min(by_pld, by_rdp) == by_rdp
    few = [epsilon_of(EVENTS[1], count=100, delta=1e-6, accountant=each) for each in KINDS]
    assert few[2] == min(few) == few[0]
