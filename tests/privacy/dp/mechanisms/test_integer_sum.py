"""A noisy sum of whole numbers: sensitivity, noise down to the fewest survivors, no wrap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from meadow.errors import ConfigError, UpdateError
from meadow.privacy.dp.accounting.calibration import calibrate_noise
from meadow.privacy.dp.accounting.concentrated import epsilon_of_line
from meadow.privacy.dp.mechanisms.hadamard import rotate_back
from meadow.privacy.dp.mechanisms.integer_sum import LAWS, IntegerSum, integer_sum
from meadow.privacy.dp.mechanisms.skellam import skellam_renyi
from meadow.privacy.secagg.protocol.noisy_encoding import NoisyEncoding
from meadow.randomness.entropy import system_entropy


def encoding(**changes: Any) -> NoisyEncoding:
    """Return an encoding of 500 values for 12 clients, of whom 8 may be the last."""
    parts: dict[str, Any] = {
        "length": 500,
        "bits": 32,
        "clip_norm": 2.0,
        "noise_multiplier": 1.0,
        "clients": 12,
        "noisy": 8,
        "seed": b"public",
    }
    return NoisyEncoding(**{**parts, **changes})


def summed(made: NoisyEncoding, vectors: Any) -> tuple[np.ndarray, int]:
    """Return the decoded sum of some clients' vectors."""
    numbers = [made.encode(each, 1, entropy=system_entropy) for each in vectors]
    return made.decode(np.sum(numbers, axis=0, dtype=np.uint32))


@pytest.mark.parametrize("dimension", [1, 64, 8192, 1 << 18])
@pytest.mark.parametrize("multiplier", [0.05, 0.7, 20.0])
def test_its_divergences_are_a_gaussians(dimension: int, multiplier: float) -> None:
    """At most those of the same noise multiplier, at every order, and hardly less."""
    made = integer_sum(
        dimension=dimension, bits=32, clients=100, noisy=60, noise_multiplier=multiplier
    )
    for order in (2, 3, 17, 300, 20_000):
        skellams = skellam_renyi(
            order, norm_l2=made.norm_l2, norm_l1=made.norm_l1, variance=made.variance
        )
        gaussians = order / (2 * multiplier**2)
        assert 0.95 * gaussians < skellams <= gaussians * (1 + 1e-12)
        thin = made.variance * 0.9
        too_much = skellam_renyi(order, norm_l2=made.norm_l2, norm_l1=made.norm_l1, variance=thin)
        assert too_much > gaussians


@pytest.mark.parametrize("law", LAWS)
def test_the_noise_of_the_fewest_survivors_is_the_planned(law: str) -> None:
    """With all dropouts that there may be; more clients add more, and one less has too little."""
    made = encoding(length=16_000, law=law)
    planned = (made.noise_multiplier * made.clip_norm) ** 2
    nothing = np.zeros(16_000, np.float32)
    for clients in (8, 12):
        noise, count = summed(made, [nothing] * clients)
        assert count == clients
        # a chi-square of 16,000 values; the rounded norm makes the planned 2 % larger at most
        ratio = float(noise @ noise) / 16_000 / planned / (clients / 8)
        low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], 16_000) / 16_000
        assert low <= ratio <= 1.02 * high
    noise, _ = summed(made, [nothing] * 7)
    assert float(noise @ noise) / 16_000 / planned < stats.chi2.ppf(1e-6, 16_000) / 16_000


def test_one_client_changes_the_numbers_by_the_sensitivity(monkeypatch: Any) -> None:
    """Without noise: whatever the vector, also with all of its norm in one value, and beyond."""
    monkeypatch.setattr(IntegerSum, "noise", lambda self, count, words: np.zeros(count, int))
    random, largest = np.random.default_rng(0), 0.0
    for length in (1, 3, 40):
        made = encoding(length=length)
        for norm in (0.0, 0.7, 2.0, 1e6):
            for vector in (random.normal(size=length), np.eye(length)[0]):
                scaled = (vector * norm / np.linalg.norm(vector)).astype(np.float32)
                numbers = made.encode(scaled, 1, entropy=system_entropy)[:-1].view(np.int32)
                moved = float(np.linalg.norm(numbers.astype(float))) / made.grid.norm_l2
                assert moved <= 1
                largest = max(largest, moved)
    assert largest > 0.99  # the bound is not an idle one


def test_the_sum_is_that_of_the_vectors() -> None:
    """Within the noise, clipped to the norm; values of any float type, and no weights."""
    made = encoding(noise_multiplier=0.01)
    random = np.random.default_rng(1)
    vectors = [random.normal(size=500).astype(np.float32) for _ in range(5)]
    expected = sum(2.0 * each / np.linalg.norm(each) for each in vectors)
    found, count = summed(made, vectors)
    assert count == 5
    assert np.abs(found - expected).max() < 6 * 0.02 * 1.1
    assert np.linalg.norm(found - expected) < 0.02 * math.sqrt(500) * 1.3


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_no_sum_wraps_with_the_fewest_bits(noise: float, law: str) -> None:
    """All clients have the same vector of full norm, in one value or in all; a bit less is refused."""
    parts = {"clients": 40, "noisy": 25, "noise_multiplier": noise, "clip_norm": 1.0, "law": law}
    bits = next(bits for bits in range(8, 33) if _is_possible(bits=bits, **parts))
    made = encoding(bits=bits, **parts)
    with pytest.raises(ConfigError, match=f"raise privacy.secure_aggregation.bits to {bits}"):
        encoding(bits=bits - 1, **parts)
    largest = 0.0
    for vector in (np.eye(500)[3], np.full(500, 1 / math.sqrt(500))):
        numbers = [
            made.encode(vector.astype(np.float32), 1, entropy=system_entropy) for _ in range(40)
        ]
        exact = sum(each[:-1].view(np.int32).astype(np.int64) for each in numbers)
        largest = max(largest, float(np.abs(exact).max()))
        found, count = made.decode(np.sum(numbers, axis=0, dtype=np.uint32))
        assert count == 40
        whole = rotate_back(np.asarray(exact, np.float64), 500, made.seed) / made.scale
        np.testing.assert_allclose(found, whole, atol=1e-9)  # nothing was lost
        assert np.linalg.norm(found - 40 * vector) < 1.2 * noise * math.sqrt(500 * 40 / 25) + 3
    assert 2 ** (bits - 1) / 8 < largest < 2 ** (bits - 1)  # the bound is not an idle one


def _is_possible(**parts: Any) -> bool:
    try:
        encoding(**parts)
    except ConfigError:
        return False
    return True


def test_a_sum_beyond_the_bound_would_wrap() -> None:
    """Ten times the clients that it was made for: what the bound prevents is real."""
    made = encoding(bits=13, noise_multiplier=0.05, clients=20, noisy=20, clip_norm=1.0, length=64)
    turned = np.zeros(64, np.float32)
    turned[0] = 1.0
    right, _ = summed(made, [turned] * 20)
    wrong, _ = summed(made, [turned] * 900)
    assert abs(right[0] - 20) < 2
    assert abs(wrong[0] - 900) > 100


def test_noise_that_no_client_can_draw() -> None:
    """Says what to lower."""
    with pytest.raises(ConfigError, match="noise_multiplier = 10000 needs"):
        encoding(noise_multiplier=1e4)


def test_what_is_refused() -> None:
    """Values that are not finite, wrong shapes, and weights: every client counts once."""
    made = encoding()
    for vector, weight in (
        (np.full(500, np.nan, np.float32), 1),
        (np.full(500, np.inf, np.float32), 1),
        (np.zeros(499, np.float32), 1),
        (np.zeros(500, np.int32), 1),
        (np.zeros(500, np.float32), 2),
    ):
        with pytest.raises(UpdateError):
            made.encode(vector, weight, entropy=system_entropy)


def test_the_same_entropy_gives_other_noise() -> None:
    """A simulation's session follows from its seed; its noise must not."""
    made, nothing = encoding(), np.zeros(500, np.float32)
    one, other = (made.encode(nothing, 1, entropy=lambda size: bytes(size)) for _ in range(2))
    assert (one != other).mean() > 0.9
    assert not made.encode(nothing, 0, entropy=lambda size: bytes(size)).any()


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("rounds", [1, 1000])
def test_it_needs_hardly_more_noise_than_the_server_would(epsilon: float, rounds: int) -> None:
    """For the same budget: the accounting by Renyi divergences costs some percent of noise."""
    budget = {"epsilon": epsilon, "delta": 1e-6, "rounds": rounds, "probability": None}
    ours = calibrate_noise(**budget, source="distributed")  # type: ignore[arg-type]
    servers = calibrate_noise(**budget)  # type: ignore[arg-type]
    assert servers < ours < 1.12 * servers
    assert epsilon_of_line(rounds / ours**2, 1e-6) <= epsilon


def test_epsilon_of_a_line_is_dp_accountings() -> None:
    """Of Gaussian releases, whose divergences are that line, by its RDP accountant."""
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import rdp

    for multiplier, count in ((1.0, 1), (5.0, 40), (60.0, 1000)):
        accountant = rdp.RdpAccountant(orders=list(range(2, 513)))
        accountant.compose(dp.GaussianDpEvent(multiplier), count)
        theirs = accountant.get_epsilon(1e-6)
        assert epsilon_of_line(count / multiplier**2, 1e-6) == pytest.approx(theirs, rel=1e-3)
    assert epsilon_of_line(0.0, 1e-6) == 0.0 and math.isinf(epsilon_of_line(math.inf, 1e-6))
