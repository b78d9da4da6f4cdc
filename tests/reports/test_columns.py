"""Columns: what is missing is NaN, and a thinned curve still shows every spike."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meadow.reports.columns import COLUMNS_MAX, Columns, thin


def test_missing_values_are_nan() -> None:
    """A column that begins late or pauses has NaN there."""
    columns = Columns()
    columns.add(1, {"a": 1.0})
    columns.add(2, {"b": 2.0})
    np.testing.assert_array_equal(columns.column("a"), [1.0, np.nan])
    np.testing.assert_array_equal(columns.column("b"), [np.nan, 2.0])
    np.testing.assert_array_equal(columns.column("c"), [np.nan, np.nan])
    assert columns.total("a") == 1.0


def test_a_repeated_round_counts_once() -> None:
    """A round that was written twice, before and after a crash, has its last values."""
    columns = Columns()
    for value in (1.0, 5.0):
        columns.add(3, {"a": value})
    assert columns.rounds.tolist() == [3] and columns.column("a").tolist() == [5.0]


def test_the_number_of_columns_is_bounded() -> None:
    """Names come from files: beyond the bound they are left out, and that is known."""
    columns = Columns()
    columns.add(1, {f"m{number}": 1.0 for number in range(COLUMNS_MAX + 3)})
    assert len(columns.names) == COLUMNS_MAX and len(columns.left_out) == 3


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400),
    points_max=st.integers(2, 50),
)
def test_thin_keeps_the_extremes(values: list[float], points_max: int) -> None:
    """Whatever the curve: bounded, in order, with its highest and lowest point."""
    x, y = np.arange(len(values), dtype=np.float64), np.array(values)
    thin_x, thin_y = thin(x, y, points_max=points_max)
    assert len(thin_x) <= max(points_max, 2)
    assert (np.diff(thin_x) > 0).all()
    assert (y[thin_x.astype(int)] == thin_y).all()
    assert thin_y.min() == y.min() and thin_y.max() == y.max()


def test_thin_leaves_out_what_is_not_finite() -> None:
    """A diverged round does not break the picture."""
    x, y = thin(np.arange(4.0), np.array([1.0, np.nan, np.inf, 2.0]))
    assert x.tolist() == [0, 3] and y.tolist() == [1, 2]
