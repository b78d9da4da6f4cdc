"""Clipping and noise: what is released, and what a single client can change of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from meadow.errors import UpdateError
from meadow.flower.messages import MemoryTensor
from meadow.privacy.dp.mechanisms.clipping import WITHIN_KEY, Clipping, ClippingKind, clip_update
from meadow.privacy.dp.mechanisms.mechanism import NoisyAggregate, PrivateMean
from meadow.privacy.dp.mechanisms.parts import PART
from meadow.randomness.entropy import system_entropy
from meadow.strategies.algorithms.algorithm import Params, Update

SILENT = 1e-12
"""A noise multiplier too small to be seen."""


def mechanism(**changes: Any) -> PrivateMean:
    """Return a mechanism for a cohort of 4, with a clip of 1."""
    parts: dict[str, Any] = {
        "cohort": 4.0,
        "clipping": Clipping(clip_norm=1.0),
        "noise_multiplier": SILENT,
        "entropy": system_entropy,
    }
    return PrivateMean(**{**parts, **changes})


def update(client: int, params: Params, **changes: Any) -> Update:
    """Return one client's update."""
    tensors = {name: MemoryTensor(values) for name, values in params.items()}
    return Update(client=client, params=tensors, **{"weight": 1.0, **changes})


def released(
    made: PrivateMean, params: Params, trained: Sequence[Params], **changes: Any
) -> NoisyAggregate:
    """Return what a round with these clients releases."""
    accumulator = made.zero(params)
    for client, each in enumerate(trained):
        accumulator = made.fold(accumulator, [update(client, each, **changes)])
    return made.finish(accumulator)


def norm_of(params: Params, old: Params) -> float:
    """Return how far params are from the old ones."""
    return float(np.sqrt(sum(((params[n].astype(float) - old[n]) ** 2).sum() for n in old)))


@pytest.mark.parametrize("kind", ["fixed", "adaptive", "per_layer"])
@given(scale=st.floats(1e-6, 1e6), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_no_client_exceeds_the_clip(kind: ClippingKind, scale: float, seed: int) -> None:
    """Whatever a client's delta is, the clipped one has at most the norm, tensor by tensor too."""
    draw = np.random.default_rng(seed)
    old = {"a": draw.normal(size=(3, 2)), "b": draw.normal(size=5)}
    new = {name: values + scale * draw.normal(size=values.shape) for name, values in old.items()}
    clipped, within = clip_update(old, update(1, new).params, Clipping(kind=kind, clip_norm=0.7))
    found = {name: tensor.numpy() for name, tensor in clipped.items()}
    assert norm_of(found, old) <= 0.7 * (1 + 1e-9)
    if kind == "per_layer":
        for name, before in old.items():
            single = norm_of({name: found[name]}, {name: before})
            assert single <= 0.7 / np.sqrt(2) * (1 + 1e-9)
    assert within == all(np.array_equal(found[name], new[name]) for name in old)


@pytest.mark.parametrize("kind", ["fixed", "per_layer"])
def test_sensitivity_by_brute_force(kind: ClippingKind) -> None:
    """Over all small cohorts, one client more or less changes the sum by the clip, not by more."""
    old = {"a": np.zeros(2), "b": np.zeros(1)}
    points = [-5.0, -0.2, 0.0, 3.0]
    options = [
        {"a": np.array([x, y]), "b": np.array([z])}
        for x, y, z in itertools.product(points, repeat=3)
    ]
    made = mechanism(clipping=Clipping(kind=kind, clip_norm=1.0))
    worst = 0.0
    for others in ([], [options[0]], [options[7], options[63]]):
        without = released(made, old, others).mean
        for one in options:
            beside = released(made, old, [*others, one]).mean
            worst = max(worst, made.cohort * norm_of(beside, without))
    assert worst == pytest.approx(1.0, rel=1e-6)


def test_the_divisor_is_the_configured_cohort() -> None:
    """Who answers changes nothing but the sum: two of a cohort of 4 move the params by 2/4."""
    old = {"a": np.zeros(1)}
    found = released(mechanism(), old, [{"a": np.array([0.5])}] * 2)
    assert found.mean["a"] == pytest.approx([0.25])
    assert found.clients == 2


def test_examples_weigh_nothing() -> None:
    """A client with many examples counts once, or it would exceed the sensitivity."""
    old = {"a": np.zeros(1)}
    found = released(mechanism(), old, [{"a": np.array([0.8])}], weight=1000.0)
    assert found.mean["a"] == pytest.approx([0.2])


def test_a_share_of_many_is_a_whole_number_of_clients() -> None:
    """One of 49 within the clip is one, also where 49 * (1 / 49) is not: no order of adding up shows."""
    old = {"a": np.zeros(1)}
    made = mechanism(count_noise_stddev=1.0, entropy=lambda size: bytes(size))
    one, none = {WITHIN_KEY: 1.0}, {WITHIN_KEY: 0.0}
    single, together = made.zero(old), made.zero(old)
    for client in range(49):
        told = update(client, old, metrics=none if client else one)
        single = made.fold(single, [told])
    together = made.fold(together, [update(0, old, clients=49, metrics={WITHIN_KEY: 1 / 49})])
    assert 49 * (1 / 49) != 1.0
    assert made.finish(together).within == made.finish(single).within


def test_an_empty_cohort_releases_noise() -> None:
    """That nobody was drawn is not to be seen."""
    old = {"a": np.zeros(2000)}
    made = mechanism(noise_multiplier=2.0)
    found = made.finish(made.zero(old))
    assert found.mean["a"].std() == pytest.approx(2.0 / 4, rel=0.15)


def test_values_that_are_not_finite() -> None:
    """A client refuses to send them; an update without a norm adds nothing on the server."""
    old = {"a": np.zeros(2)}
    bad = {"a": np.array([np.nan, 0.0])}
    with pytest.raises(UpdateError, match="not finite"):
        clip_update(old, update(1, bad).params, Clipping())
    found = released(mechanism(), old, [{"a": np.array([1e200, 0.0])}, {"a": np.array([0.4, 0])}])
    assert found.mean["a"] == pytest.approx([0.1, 0.0])


def test_counters_are_not_released() -> None:
    """Integers carry no noise, so they stay what they were."""
    old: Params = {"a": np.zeros(1), "steps": np.array([7])}
    found = released(mechanism(), old, [{"a": np.ones(1), "steps": np.array([99])}])
    assert found.mean["steps"] == [7]


def test_the_params_keep_their_dtype_and_shape() -> None:
    """Half precision and complex tensors come back as they are, the latter with noise on both."""
    old: Params = {
        "half": np.zeros((2, 3), np.float16),
        "complex": np.zeros(4000, np.complex64),
        "scalar": np.float32(1.0).reshape(()),
    }
    found = released(mechanism(noise_multiplier=1.0), old, [old]).mean
    assert [found[name].dtype for name in old] == [each.dtype for each in old.values()]
    assert [found[name].shape for name in old] == [each.shape for each in old.values()]
    assert found["complex"].real.std() == pytest.approx(0.25, rel=0.1)
    assert found["complex"].imag.std() == pytest.approx(0.25, rel=0.1)


def looks_normal(values: NDArray[np.float64], stddev: float) -> bool:
    """Test at about one in a million: the distance from the distribution function, and variance."""
    from math import erf

    ordered = np.sort(values) / stddev
    wanted = np.array([0.5 + 0.5 * erf(value / 2**0.5) for value in ordered])
    distance = np.abs(wanted - (np.arange(len(values)) + 0.5) / len(values)).max()
    variance = abs((values**2).mean() / stddev**2 - 1)
    return bool(distance < 2.7 / len(values) ** 0.5 and variance < 5 * (2 / len(values)) ** 0.5)


def test_the_noise_is_gaussian_of_the_planned_scale() -> None:
    """sigma = multiplier * clip / cohort; a scale that is wrong by 3 % is told apart."""
    old = {"a": np.zeros(70_000), "b": np.zeros(130_000)}
    made = mechanism(noise_multiplier=1.5, clipping=Clipping(clip_norm=0.2), cohort=8.0)
    mean = released(made, old, [old]).mean
    noise = np.concatenate([mean["a"], mean["b"]])
    stddev = 1.5 * 0.2 / 8
    assert looks_normal(noise, stddev)
    assert not looks_normal(noise, stddev * 1.03)
    assert not looks_normal(noise, stddev / 1.03)


def test_noise_is_drawn_anew() -> None:
    """Two releases, blocks and tensors share no noise; only the same entropy repeats it."""
    old = {"a": np.zeros(65_536 * 2), "b": np.zeros(65_536)}
    made = mechanism(noise_multiplier=1.0)
    first, second = (released(made, old, [old]).mean for _ in range(2))
    pieces = [first["a"][:65_536], first["a"][65_536:], first["b"], second["b"]]
    for one, other in itertools.combinations(pieces, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
    fixed = mechanism(noise_multiplier=1.0, entropy=lambda size: b"\7" * size)
    assert np.array_equal(released(fixed, old, [old]).mean["a"], released(fixed, old, []).mean["a"])


def test_the_count_within_the_clip_is_noisy_and_centred() -> None:
    """Its noise is its own, and a missing client counts a half: the sensitivity is a half."""
    old = {"a": np.zeros(1)}
    made = mechanism(count_noise_stddev=2.0, cohort=100.0)
    shares = []
    for _ in range(400):
        accumulator = made.zero(old)
        for client in range(80):
            one = update(client, old, metrics={WITHIN_KEY: float(client < 20)})
            accumulator = made.fold(accumulator, [one])
        shares.append(made.finish(accumulator).within)
    assert np.mean(shares) == pytest.approx((20 - 60) / 2 / 100 + 0.5, abs=0.006)
    assert np.std(shares) == pytest.approx(0.02, rel=0.2)


def test_params_and_count_are_one_release() -> None:
    """The event's multiplier is that of both sums together (Andrew et al. 2021, theorem 1)."""
    made = mechanism(noise_multiplier=2.0, count_noise_stddev=1.0)
    assert made.event.noise_multiplier == pytest.approx((0.25 + 0.25) ** -0.5)
    assert mechanism(noise_multiplier=2.0).event.noise_multiplier == pytest.approx(2.0)


def test_long_tensors_are_noised_side_by_side_to_the_same_bits() -> None:
    """Threads change nothing of what a seed gives, and parts of a tensor share no noise."""
    size = 5 * PART + 5
    old = {"a": np.zeros(size, np.float32), "b": np.zeros(7)}
    fixed = mechanism(noise_multiplier=1.0, entropy=lambda size: b"\7" * size)
    first, again = (released(fixed, old, [old]).mean for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in old)
    assert looks_normal(first["a"][: 2 * PART], 1.0 / 4)
    pieces = [first["a"][start : start + PART] for start in range(0, 3 * PART, PART)]
    for one, other in itertools.combinations(pieces, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.01


@pytest.mark.parametrize("kind", ["fixed", "per_layer"])
def test_a_clipped_change_stays_within_the_clip_when_rounded(kind: ClippingKind) -> None:
    """The server finds nothing to clip in what a client clipped and rounded to float32."""
    draw = np.random.default_rng(3)
    old = {"a": draw.normal(size=50_000).astype(np.float32), "b": np.ones(10, np.float32)}
    clipping = Clipping(kind=kind, clip_norm=0.5)
    for scale in (0.01, 0.1, 1.0):
        new = {
            name: (v + scale * draw.normal(size=v.shape)).astype(v.dtype) for name, v in old.items()
        }
        sent, within = clip_update(old, update(1, new).params, clipping)
        assert not within
        arrived = {name: tensor.numpy() for name, tensor in sent.items()}
        assert clip_update(old, update(1, arrived).params, clipping)[1]
        assert norm_of(arrived, old) <= 0.5
