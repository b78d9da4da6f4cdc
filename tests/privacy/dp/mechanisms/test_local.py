"""A client's own noise: its distribution, its clip, and what it spends."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from meadow.errors import ProtocolError
from meadow.flower.messages import MemoryTensor
from meadow.privacy.dp.accounting.accountant import epsilon_of
from meadow.privacy.dp.accounting.events import LaplaceEvent
from meadow.privacy.dp.mechanisms.clipping import Clipping
from meadow.privacy.dp.mechanisms.local import noisy_update
from meadow.privacy.dp.noise_terms import NoiseSource, NoiseTerms
from meadow.randomness.entropy import system_entropy

LAWS = {"local_gaussian": stats.norm(scale=3.0), "local_laplace": stats.laplace(scale=3 / 2**0.5)}


def noisy(old: Any, new: Any, source: NoiseSource, *, clip: float, noise: float) -> dict[str, Any]:
    """Return what leaves the client."""
    tensors = {name: MemoryTensor(values) for name, values in new.items()}
    noise_terms = NoiseTerms(source=source, noise_multiplier=noise)
    made = noisy_update(old, tensors, Clipping(clip_norm=clip), noise_terms, system_entropy)
    return {name: tensor.numpy() for name, tensor in made.items()}


@pytest.mark.parametrize("source", ["local_gaussian", "local_laplace"])
def test_the_noise_is_of_the_planned_kind_and_scale(source: NoiseSource) -> None:
    """A twelfth more or less is rejected, and so is the other kind."""
    old = {"a": np.zeros(40_000), "n": np.asarray(4, np.int64)}
    made = noisy(old, {**old, "n": np.asarray(9, np.int64)}, source, clip=1.5, noise=2.0)
    law, other = LAWS[source], LAWS[({*LAWS} - {source}).pop()]

    def fits(values: Any, law: Any) -> bool:
        alike = stats.kstest(values, law.cdf).pvalue > 1e-6
        return bool(alike and abs(values.std() / law.std() - 1) < 0.035)

    assert fits(made["a"], law) and not fits(made["a"], other)
    assert not fits(made["a"] * 1.08, law) and not fits(made["a"] * 0.92, law)
    assert made["n"] == 4  # counters are not released


@pytest.mark.parametrize(("source", "order"), [("local_gaussian", 2), ("local_laplace", 1)])
def test_sensitivity_by_brute_force(source: NoiseSource, order: int) -> None:
    """No change is longer than the clip in the norm that the noise is for, and some are as long."""
    old, largest = {"a": np.zeros(2), "b": np.zeros(1)}, 0.0
    for point in itertools.product([-7.0, -0.1, 0.0, 0.4, 30.0], repeat=3):
        new = {"a": np.array(point[:2]), "b": np.array(point[2:])}
        made = noisy(old, new, source, clip=0.8, noise=1e-12)
        norm = float(np.linalg.norm(np.concatenate([made["a"], made["b"]]), order))
        assert norm <= 0.8 * (1 + 1e-9)
        largest = max(largest, norm)
    assert largest == pytest.approx(0.8)


def test_a_small_change_is_left_alone() -> None:
    """Dtype and shape too, of complex numbers as well."""
    old = {"a": np.ones((2, 3), np.float32), "c": np.ones(2, np.complex64)}
    new = {"a": old["a"] + np.float32(0.01), "c": old["c"] + np.complex64(0.02j)}
    for source in LAWS:
        made = noisy(old, new, source, clip=5.0, noise=1e-9)  # type: ignore[arg-type]
        for name, values in new.items():
            assert made[name].dtype == values.dtype and made[name].shape == values.shape
            np.testing.assert_allclose(made[name], values, atol=1e-6)


@pytest.mark.parametrize("source", ["local_gaussian", "local_laplace"])
def test_values_that_are_not_finite_are_no_change(source: NoiseSource) -> None:
    """Whether there were any is about the data, too: what leaves is like anybody's, noise."""
    for value in (math.nan, math.inf, -math.inf, 1e308):
        made = noisy(
            {"a": np.zeros(2)}, {"a": np.array([1e308, value])}, source, clip=1e3, noise=1e-3
        )
        assert np.abs(made["a"]).max() < (1e2 if value != 1e308 else 1e4)


def test_what_laplace_noise_spends() -> None:
    """One release: the ratio of densities, as dp-accounting says; many: less than their sum."""
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    event = LaplaceEvent(noise_multiplier=2.0)
    law = stats.laplace(scale=2.0 / math.sqrt(2))
    assert event.epsilon == pytest.approx(law.logpdf(0.0) - law.logpdf(1.0))
    assert epsilon_of(event, count=1, delta=1e-6) == pytest.approx(event.epsilon)
    for count in (1, 10, 100):
        accountant = pld.PLDAccountant()
        accountant.compose(dp.LaplaceDpEvent(2.0 / math.sqrt(2)), count)
        assert accountant.get_epsilon(1e-6) <= epsilon_of(event, count=count, delta=1e-6) + 1e-3
    assert epsilon_of(event, count=100, delta=1e-6) < 0.9 * 100 * event.epsilon


@pytest.mark.parametrize(
    "record",
    [
        {"dp-noise-multiplier": 0.0},
        {"dp-noise-multiplier": math.inf},
        {"dp-noise-multiplier": "2"},
        {"dp-noise-multiplier": 2.0, "dp-noise": "nobody"},
    ],
)
def test_noise_that_cannot_be_announced(record: dict[str, Any]) -> None:
    """A multiplier that is none, and a source that there is not."""
    with pytest.raises(ProtocolError, match="must be"):
        NoiseTerms.of(record)
    noise_terms = NoiseTerms(source="local_laplace", noise_multiplier=2.0)
    assert NoiseTerms.of(noise_terms.record()) == noise_terms and NoiseTerms.of({}) is None
