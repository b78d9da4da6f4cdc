"""What adversaries send, by hand and by what each attack promises."""

from __future__ import annotations

import numpy as np
import pytest

from meadow.simulations.adversaries.attacks import ATTACKS, distances_squared

HONEST = np.array([[1.0, 2.0, 0.0], [3.0, 2.0, -1.0], [2.0, 5.0, 1.0], [2.0, 3.0, 4.0]])


def sent(kind, honest=HONEST, strength=1.5, seed=0):
    return ATTACKS[kind](honest, strength, np.random.default_rng(seed))


def test_attacks_by_hand():
    """Sign flip, IPM, ALIE and mimic on four clients and three values; deviations are sample ones."""
    assert sent("sign_flip").tolist() == [-2.0, -3.0, -1.0]
    assert sent("ipm").tolist() == [-3.0, -4.5, -1.5]
    deviation = np.sqrt(np.array([2.0, 6.0, 14.0]) / 3)
    assert sent("alie") == pytest.approx([2.0, 3.0, 1.0] + 1.5 * deviation)
    assert sent("mimic").tolist() == [1.0, 2.0, 0.0]


def test_min_max_goes_as_far_as_honest_clients_do():
    """The adversary's greatest distance is that between two honest clients, and no more."""
    greatest = distances_squared(HONEST).max()
    distances = ((sent("min_max") - HONEST) ** 2).sum(axis=1)
    assert distances.max() == pytest.approx(greatest)
    assert not np.allclose(sent("min_max"), HONEST.mean(axis=0))


def test_min_sum_has_the_greatest_honest_sum():
    """The adversary's sum of squared distances is that of the outermost honest client."""
    greatest = distances_squared(HONEST).sum(axis=1).max()
    assert ((sent("min_sum") - HONEST) ** 2).sum() == pytest.approx(greatest)


def test_noise_has_its_strength_and_its_seed():
    """Gaussian noise repeats by its generator, and has the standard deviation that is asked for."""
    honest = np.zeros((2, 20_000))
    noise = sent("gaussian", honest, strength=3.0)
    assert noise.std() == pytest.approx(3.0, rel=0.03)
    assert np.array_equal(noise, sent("gaussian", honest, strength=3.0))
    assert not np.array_equal(noise, sent("gaussian", honest, strength=3.0, seed=1))


@pytest.mark.parametrize("kind", ATTACKS)
def test_one_honest_client_is_enough(kind):
    """With a single honest update nothing is undefined."""
    assert np.isfinite(sent(kind, HONEST[:1])).all()
