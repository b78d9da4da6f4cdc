"""Skellam noise and what it takes to add it to whole numbers: distribution, rounding, rotation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ive

from meadow.errors import ConfigError
from meadow.privacy.dp.mechanisms.hadamard import padded, rotate, rotate_back
from meadow.privacy.dp.mechanisms.inversion import STDDEV_MAX
from meadow.privacy.dp.mechanisms.rounding import BETA, rounded_norm, rounded_within
from meadow.privacy.dp.mechanisms.skellam import skellam, skellam_renyi, skellam_tail

DRAWS = 60_000


def drawn(variance: float, seed: int = 0) -> np.ndarray:
    """Return noise from words of a fixed seed."""
    random = np.random.default_rng(seed)
    return skellam(variance, DRAWS, lambda count: random.integers(0, 1 << 64, count, np.uint64))


def fits(values: np.ndarray, variance: float) -> bool:
    """Say whether a chi-square test takes the values for Skellam's with this variance."""
    law = stats.skellam(variance / 2, variance / 2)
    edges = np.unique(law.ppf(np.linspace(0.02, 0.98, 25)))
    expected = np.diff(np.concatenate([[0.0], law.cdf(edges), [1.0]])) * len(values)
    found = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
    return bool(stats.chisquare(found, expected).pvalue > 1e-4)


@pytest.mark.parametrize("variance", [0.3, 5.0, 4_000.0, 1e7])
def test_the_noise_is_skellam_of_this_variance_and_no_other(variance: float) -> None:
    """A twentieth more or less is rejected: the test could fail."""
    values = drawn(variance)
    assert fits(values, variance)
    assert not fits(values, 1.05 * variance) and not fits(values, 0.95 * variance)
    assert not fits(values + 1 if variance < 100 else values + int(variance**0.5 / 10), variance)


def test_sums_are_skellam_again() -> None:
    """Of five clients' noise, with five times the variance, as the accounting presumes."""
    total = sum(drawn(7.0, seed) for seed in range(5))
    assert fits(np.asarray(total), 35.0) and not fits(np.asarray(total), 7.0)


def test_its_tail_is_bounded() -> None:
    """By Bernstein's bound, and not by a third of it."""
    for variance in (0.5, 50.0, 1e5):
        law = stats.skellam(variance / 2, variance / 2)
        bound = skellam_tail(variance, 12.0)
        assert law.sf(bound) <= math.exp(-12.0) < law.sf(bound / 3)


def test_noise_that_cannot_be_drawn_is_refused() -> None:
    """Beyond the table, and without any noise."""
    for variance in (0.0, 2 * STDDEV_MAX**2, math.nan):
        with pytest.raises(ConfigError, match="variance"):
            skellam(variance, 1, lambda count: np.zeros(count, np.uint64))


@pytest.mark.parametrize("shift", [(1,), (3,), (2, 1), (1, 1, 1)])
@pytest.mark.parametrize("variance", [4.0, 30.0])
def test_its_divergences_are_below_the_theorems(shift: tuple[int, ...], variance: float) -> None:
    """Computed by brute force from the probabilities; a third of the bound is exceeded."""
    places = np.arange(-90, 91)
    for order in (2, 5, 16):
        exact = 0.0
        for moved in shift:
            p, q = (np.log(ive(np.abs(each), variance)) for each in (places, places - moved))
            terms = order * p + (1 - order) * q
            exact += float(np.logaddexp.reduce(terms)) / (order - 1)
        bound = skellam_renyi(
            order,
            norm_l2=math.sqrt(sum(each * each for each in shift)),
            norm_l1=float(sum(shift)),
            variance=variance,
        )
        assert exact <= bound
        assert bound / 3 < exact or order > 5


@given(st.integers(1, 70), st.integers(0, 1000))
def test_a_rotation_keeps_norms_and_is_undone(length: int, seed: int) -> None:
    """Whatever the length; another seed does not undo it."""
    vector = np.random.default_rng(seed).normal(size=length)
    turned = rotate(vector, b"one")
    assert len(turned) == padded(length) >= length
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(vector))
    np.testing.assert_allclose(rotate_back(turned, length, b"one"), vector, atol=1e-12)
    if length > 8:
        assert np.abs(rotate_back(turned, length, b"other") - vector).max() > 1e-3


def test_a_rotation_spreads_a_single_value() -> None:
    """Over all values alike, and two values as a random vector."""
    one = np.zeros(1000)
    one[17] = 1.0
    np.testing.assert_allclose(np.abs(rotate(one, b"seed")), 1 / math.sqrt(1024))
    several = np.random.default_rng(1).normal(size=1000) * (np.arange(1000) < 50)
    turned = rotate(several / np.linalg.norm(several), b"seed")
    assert np.abs(turned).max() < math.sqrt(2 * math.log(2 * 1024 * 1e6) / 1024)


@pytest.mark.parametrize("norm", [0.5, 2.0, 30.0])
def test_no_rounding_is_longer_than_its_bound(norm: float) -> None:
    """Over many vectors of a norm, and all that they can be rounded to: long ones are not kept."""
    random = np.random.default_rng(3)
    bound, too_long, kept = rounded_norm(norm, 6), 0, 0
    for _ in range(40):
        vector = random.normal(size=6)
        vector *= norm / np.linalg.norm(vector)
        lower = np.floor(vector)
        for ups in itertools.product((0, 1), repeat=6):
            too_long += np.linalg.norm(lower + ups) > bound
        for _ in range(20):
            rounded = rounded_within(vector, bound, random.random)
            assert np.abs(rounded - vector).max() < 1
            assert np.linalg.norm(rounded) <= bound
            kept += 1
    assert kept == 800 and (too_long > 0 or norm > 10 or norm < 1)


def test_rounding_is_right_on_average() -> None:
    """Within five standard errors, and the bound is met at once as often as it is said to be."""
    random = np.random.default_rng(4)
    vector = random.normal(size=64) * 100
    norm, runs = float(np.linalg.norm(vector)), 4_000
    bound = rounded_norm(norm, 64)
    rounded = np.array([rounded_within(vector, bound, random.random) for _ in range(runs)])
    assert np.abs(rounded.mean(axis=0) - vector).max() < 5 * 0.5 / math.sqrt(runs)
    free = np.floor(vector) + (random.random((runs, 64)) < vector - np.floor(vector))
    assert (np.linalg.norm(free, axis=1) > bound).mean() < BETA


def test_a_vector_that_is_always_too_long_is_cut() -> None:
    """Towards zero, where no rounding was within the bound."""
    cut = rounded_within(np.array([1.5, -1.5]), 1.5, lambda count: np.zeros(count))
    assert cut.tolist() == [1, -1]
