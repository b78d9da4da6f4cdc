"""Sums without rounding errors, against fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meadow.strategies.algorithms.exact_sums import exact_parts, exact_sums

SMALLEST = Fraction(2) ** -1074


@given(st.lists(st.floats(-1e300, 1e300), max_size=20))
def test_parts_have_the_same_sum(values):
    """The first part is the rounded sum; together they are the sum."""
    parts = exact_parts(values)
    exact = sum(map(Fraction, values), Fraction())
    assert sum(map(Fraction, parts)) == exact
    assert parts[0] == float(exact)


def test_parts_of_what_is_no_number_end():
    """Nothing that a peer sends makes it search for ever."""
    assert exact_parts([float("nan")]) == [0.0]
    assert exact_parts([float("inf")]) == [0.0]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 30),
    spread=st.sampled_from([0, 3, 15, 140]),
    weights=st.sampled_from(["ones", "counts", "large", "fractions"]),
    single=st.booleans(),
    rare=st.sampled_from([0, 2, 40]),
)
def test_sums_are_exact(seed, clients, spread, weights, single, rare):
    """Each rounded sum is the nearest float64, and the rests are what it lacks."""
    generator = np.random.default_rng(seed)
    factors = {
        "ones": np.ones(clients),
        "counts": generator.integers(1, 60_000, clients).astype(float),
        "large": generator.integers(1, 2**52, clients).astype(float),
        "fractions": generator.random(clients) + 1e-9,
    }[weights]
    spread = min(spread, 30) if single else spread
    values = generator.standard_normal((clients, 41)) * 10.0 ** generator.uniform(
        -spread, spread, (clients, 41)
    )
    values[generator.random(values.shape) < 0.1] = 0.0
    values[generator.integers(clients), generator.permutation(41)[:rare]] *= (
        1e-9  # of a few columns
    )
    values = values.astype(np.float32).astype(float) if single else values
    found = exact_sums(factors, values)
    assert (np.diff(found.positions) >= 0).all()
    for column in range(41):
        pairs = zip(factors.tolist(), values[:, column].tolist(), strict=True)
        exact = sum((Fraction(w) * Fraction(v) for w, v in pairs), Fraction())
        assert found.rounded[column] == float(exact)
        rests = found.rests[found.positions == column].tolist()
        assert abs(sum(map(Fraction, [found.rounded[column], *rests])) - exact) <= SMALLEST


@pytest.mark.parametrize("shape", [(3, 0), (1, 1), (2, 9000)])
def test_any_shape(shape):
    """No column, one value, and more columns than are added up at once."""
    values = np.ones(shape)
    found = exact_sums(np.ones(shape[0]), values)
    np.testing.assert_array_equal(found.rounded, values.sum(axis=0))
    assert not found.positions.size and found.positions.dtype == np.int64


def test_subnormal_values_are_added_up():
    """Values below every grid are one slice."""
    values = np.full((4, 3), 5e-324)
    np.testing.assert_array_equal(exact_sums(np.ones(4), values).rounded, 4 * values[0])
