"""Discrete Gaussian noise: its distribution, its tail, and how private sums of it are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from meadow.errors import ConfigError
from meadow.privacy.dp.mechanisms.discrete_gaussian import (
    discrete_gaussian,
    discrete_gaussian_renyi,
    discrete_gaussian_tail,
    discrete_gaussian_variance,
)
from meadow.privacy.dp.mechanisms.integer_sum import integer_sum
from meadow.privacy.dp.mechanisms.inversion import STDDEV_MAX

DRAWS = 60_000


def probabilities(variance: float, count: int) -> np.ndarray:
    """Return those of -count to count."""
    weights = np.exp(-(np.arange(-count, count + 1.0) ** 2) / (2 * variance))
    return weights / weights.sum()


def drawn(variance: float, seed: int = 0) -> np.ndarray:
    """Return noise from words of a fixed seed."""
    random = np.random.default_rng(seed)
    return discrete_gaussian(
        variance, DRAWS, lambda count: random.integers(0, 1 << 64, count, np.uint64)
    )


def fits(values: np.ndarray, variance: float) -> bool:
    """Say whether a chi-square test takes the values for a discrete Gaussian's."""
    count = int(12 * math.sqrt(variance)) + 12
    below = np.cumsum(probabilities(variance, count))
    edges = np.unique(np.searchsorted(below, np.linspace(0.02, 0.98, 25)))
    expected = np.diff(np.concatenate([[0.0], below[edges], [1.0]])) * len(values)
    found = np.bincount(np.searchsorted(edges - count, values), minlength=len(edges) + 1)
    return bool(stats.chisquare(found, expected).pvalue > 1e-4)


@pytest.mark.parametrize("variance", [0.3, 5.0, 4_000.0, 1e7])
def test_the_noise_is_of_this_variance_and_no_other(variance: float) -> None:
    """A twentieth more or less is rejected, and a shift: the test could fail."""
    values = drawn(variance)
    assert fits(values, variance)
    assert not fits(values, 1.05 * variance) and not fits(values, 0.95 * variance)
    assert not fits(values + 1 if variance < 100 else values + int(variance**0.5 / 10), variance)


def test_its_tail_is_bounded() -> None:
    """By the subgaussian bound, also that of a sum, and not by half of it."""
    for variance, clients in ((3.0, 1), (50.0, 1), (3.0, 6), (50.0, 6)):
        one = probabilities(variance, int(14 * math.sqrt(variance)) + 14)
        total = one
        for _ in range(clients - 1):
            total = np.convolve(total, one)
        places = np.arange(len(total)) - len(total) // 2
        bound = discrete_gaussian_tail(clients * variance, 12.0)
        beyond = float(total[np.abs(places) > bound].sum())
        assert beyond <= 2 * math.exp(-12.0) < float(total[np.abs(places) > bound / 2].sum())


def test_noise_that_cannot_be_drawn_is_refused() -> None:
    """Beyond the table, and without any noise."""
    for variance in (0.0, 2 * STDDEV_MAX**2, math.nan):
        with pytest.raises(ConfigError, match="variance"):
            discrete_gaussian(variance, 1, lambda count: np.zeros(count, np.uint64))


@pytest.mark.parametrize("clients", [1, 2, 5])
@pytest.mark.parametrize("variance", [0.4, 1.0, 4.0])
@pytest.mark.parametrize("moved", [1, 3])
def test_divergences_of_sums_are_below_the_theorems(
    clients: int, variance: float, moved: int
) -> None:
    """Computed by brute force from the probabilities of a sum; of enough noise a twentieth below the
    bound is exceeded. With little noise a sum's divergences are above a Gaussian's."""
    one = probabilities(variance, int(20 * math.sqrt(variance)) + 20)
    total = one
    for _ in range(clients - 1):
        total = np.convolve(total, one)
    total = total[total > 1e-290]  # what is left out is far in the tails
    p, q = np.log(total[moved:]), np.log(total[:-moved])
    for order in (2.0, 5.0):
        exact = float(np.logaddexp.reduce(order * p + (1 - order) * q)) / (order - 1)
        bound = discrete_gaussian_renyi(
            order, norm_l2=moved, variance=clients * variance, clients=clients, dimension=1
        )
        assert exact <= bound * (1 + 1e-9)
        if variance >= 4:
            assert exact > 0.95 * bound


@pytest.mark.parametrize("dimension", [1, 64, 8192, 1 << 18])
@pytest.mark.parametrize("multiplier", [0.05, 0.7, 20.0])
def test_the_planned_sum_is_as_private_as_a_gaussian(dimension: int, multiplier: float) -> None:
    """At most its divergences of every order, and hardly less; a tenth less noise has more."""
    made = integer_sum(
        dimension=dimension,
        bits=32,
        clients=100,
        noisy=60,
        noise_multiplier=multiplier,
        law="discrete_gaussian",
    )
    parts = {"norm_l2": made.norm_l2, "clients": made.noisy, "dimension": dimension}
    for order in (2, 17, 20_000):
        gaussians = order / (2 * multiplier**2)
        found = discrete_gaussian_renyi(order, variance=made.variance, **parts)
        assert 0.99 * gaussians < found <= gaussians * (1 + 1e-12)
        assert discrete_gaussian_renyi(order, variance=0.9 * made.variance, **parts) > gaussians


def test_small_noise_is_raised_until_sums_are_nearly_gaussian() -> None:
    """A client's variance never falls below a few, whatever the multiplier asks for."""
    variance = discrete_gaussian_variance(0.1, norm_l2=1.0, clients=1000, dimension=1 << 20)
    assert 1.0 < variance / 1000 < 4.0
    bound = discrete_gaussian_renyi(
        2, norm_l2=1.0, variance=variance, clients=1000, dimension=1 << 20
    )
    assert bound <= 2 / (2 * 0.1**2)
