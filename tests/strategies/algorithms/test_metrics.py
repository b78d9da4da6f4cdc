"""Means of what clients report."""

from __future__ import annotations

import math

from flwr.app import MetricRecord
from hypothesis import given
from hypothesis import strategies as st

from meadow.strategies.algorithms.metrics import MetricMeans, scalars_of


def test_means_by_hand():
    """Weighted by examples, over those who report a metric, by name."""
    means = MetricMeans()
    means.add({"loss": 1.0, "auc": None}, weight=1.0)
    means.add({"loss": 4.0, "f1": 0.5}, weight=2.0)
    means.add({"loss": None}, weight=100.0)
    assert means.means() == {"auc": None, "f1": 0.5, "loss": 3.0}
    assert MetricMeans().means() == {}


def test_only_numbers_are_taken_from_a_record():
    """Lists are left out; what is not finite, or too large to be summed up, is None."""
    record = MetricRecord({"a": 1, "b": math.nan, "c": [1.0], "d": 10**400, "e": -math.inf})
    assert scalars_of(record) == {"a": 1.0, "b": None, "d": None, "e": None}
    assert scalars_of(None) == {}


@given(
    st.lists(st.tuples(st.floats(-1e200, 1e200), st.floats(1e-3, 1e9)), min_size=1, max_size=20),
    st.randoms(),
)
def test_the_order_changes_no_bit(reports, random):
    """Sums are exact before they are rounded."""
    shuffled = reports.copy()
    random.shuffle(shuffled)
    first, second = MetricMeans(), MetricMeans()
    for value, weight in reports:
        first.add({"loss": value}, weight=weight)
    for value, weight in shuffled:
        second.add({"loss": value}, weight=weight)
    assert first.means() == second.means()
