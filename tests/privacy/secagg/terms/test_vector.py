"""The vector of an update: what goes in comes out, as the mean, whatever the dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.errors import UpdateError
from meadow.flower.messages import params_to_arrays, tensors_of
from meadow.privacy.secagg.terms.terms import SecureTerms
from meadow.privacy.secagg.terms.vector import VectorLayout

TERMS = SecureTerms(value_bound=0.5, metrics=("accuracy", "loss"), metrics_max=50.0)
DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64, np.int32, np.int64]


def flat(params):
    return tensors_of(params_to_arrays(params))


def summed(layout, updates):
    """Return the weighted sum of vectors, as an exact secure sum would give it."""
    return sum(
        weight * layout.vector(flat(new), said).astype(float) for weight, new, said in updates
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mean_of_every_dtype(dtype) -> None:
    """Shapes and dtypes are kept; integers are rounded, complex numbers are two values."""
    random = np.random.default_rng(1)
    params = {"a": (4 * random.standard_normal((2, 3))).astype(dtype), "b": np.asarray(3, dtype)}
    layout = VectorLayout(params, TERMS)
    updates = [
        (weight, {name: np.asarray(values + weight, dtype) for name, values in params.items()}, {})
        for weight in (1, 2, 3)
    ]
    mean, _ = layout.mean(summed(layout, updates), 6)
    for name, values in mean.items():
        expected = sum(w * new[name].astype(np.complex128) for w, new, _ in updates) / 6
        assert values.dtype == params[name].dtype and values.shape == params[name].shape
        error = np.abs(values.astype(np.complex128) - expected).max()
        resolution = 0.5 if np.dtype(dtype).kind == "i" else float(ml_dtypes.finfo(dtype).eps) * 8
        assert error <= resolution + 1e-5


def test_booleans_are_decided_by_weight() -> None:
    """Most of it says true, or false."""
    layout = VectorLayout({"m": np.array([True, False, False])}, TERMS)
    updates = [
        (2, {"m": np.array([True, True, False])}, {}),
        (1, {"m": np.array([False, False, False])}, {}),
    ]
    mean, _ = layout.mean(summed(layout, updates), 3)
    np.testing.assert_array_equal(mean["m"], [True, True, False])


@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(-50, 50) | st.none()), min_size=1, max_size=6)
)
def test_metrics_are_averaged_over_who_has_them(reported) -> None:
    """A metric that only some report, or is not finite, counts for those that have it."""
    layout = VectorLayout({}, TERMS)
    updates = [
        (weight, {}, {"loss": loss, "accuracy": float("nan"), "secret": 1.0})
        for weight, loss in reported
    ]
    _, means = layout.mean(summed(layout, updates), sum(weight for weight, _ in reported))
    there = [(weight, loss) for weight, loss in reported if loss is not None]
    assert means["accuracy"] is None and set(means) == {"loss", "accuracy"}
    if not there:
        assert means["loss"] is None
        return
    expected = sum(w * loss for w, loss in there) / sum(w for w, _ in there)
    assert means["loss"] == pytest.approx(expected, abs=1e-4)


def test_metrics_are_clipped() -> None:
    """To metrics_max, so that one client's cannot be the whole mean."""
    layout = VectorLayout({}, TERMS)
    _, means = layout.mean(summed(layout, [(1, {}, {"loss": 1e9}), (1, {}, {"loss": 0.0})]), 2)
    assert means["loss"] == pytest.approx(25.0)


@pytest.mark.parametrize(
    ("new", "says"),
    [
        ({}, "tensor 'a' must be float32"),
        ({"a": np.zeros(3, np.float32)}, "must be float32"),
        ({"a": np.zeros(2)}, "must be float32"),
        ({"a": np.array([0, np.nan], np.float32)}, "not finite"),
        ({"a": np.zeros(2, np.float32), "z": np.zeros(1)}, "'z' is not one of the model's"),
    ],
    ids=["missing", "shape", "dtype", "nan", "extra"],
)
def test_an_update_that_does_not_fit(new, says) -> None:
    """Is refused by the client, with the tensor's name."""
    with pytest.raises(UpdateError, match=says):
        VectorLayout({"a": np.zeros(2, np.float32)}, TERMS).vector(flat(new), {})
