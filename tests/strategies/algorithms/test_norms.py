"""Norms of updates: by hand, and the edge cases of clipping."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.strategies.algorithms.norms import clip_delta, delta_norm_l2


def tensors(kit, params):
    return kit.update(1, 1.0, params).params


def test_the_norm_by_hand(kit):
    """Changes (3, 0), 4j and 12 make 13; counters and masks do not count."""
    old = {
        "a": np.zeros(2, np.float32),
        "z": np.zeros((1, 1), np.complex64),
        "s": np.asarray(1.0, ml_dtypes.bfloat16),
        "i": np.zeros(3, np.int64),
        "b": np.zeros(3, bool),
    }
    new = {
        "a": np.array([3, 0], np.float32),
        "z": np.array([[4j]], np.complex64),
        "s": np.asarray(13.0, ml_dtypes.bfloat16),
        "i": np.full(3, 99),
        "b": np.ones(3, bool),
    }
    assert delta_norm_l2(old, tensors(kit, new)) == 13.0


@pytest.mark.parametrize(("value", "norm"), [(0.0, 0.0), (3e38, 3e38 * 1000**0.5)])
def test_the_norm_of_nothing_and_of_huge_values(kit, value, norm):
    """float32 squares would overflow."""
    old = {"w": np.zeros(1000, np.float32)}
    new = {"w": np.full(1000, value, np.float32)}
    assert delta_norm_l2(old, tensors(kit, new)) == pytest.approx(norm, rel=1e-6)


def test_a_norm_beyond_float64_is_infinite(kit):
    """So it exceeds any limit."""
    new = {"w": np.full(9, 1e200)}
    assert delta_norm_l2({"w": np.zeros(9)}, tensors(kit, new)) == np.inf


@given(st.floats(0.01, 1.0), st.integers(0, 2**32))
def test_clipping_scales_the_change_and_keeps_its_direction(kit, factor, seed):
    """The clipped change is `factor` times the change, wherever it is read; counters stay."""
    generator = np.random.default_rng(seed)
    old = {"w": generator.standard_normal((5, 3)), "i": np.array([1])}
    new = {"w": generator.standard_normal((5, 3)), "i": np.array([7])}
    clipped = clip_delta(old, tensors(kit, new), factor=factor)
    expected = old["w"] + factor * (new["w"] - old["w"])
    np.testing.assert_allclose(clipped["w"].numpy(), expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(clipped["w"][3:8], clipped["w"].numpy().reshape(-1)[3:8])
    assert (clipped["w"].shape, clipped["w"].dtype) == ((5, 3), np.float64)
    assert clipped["i"].numpy().tolist() == [7]
