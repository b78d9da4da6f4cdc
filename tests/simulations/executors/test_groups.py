"""Groups: where a cohort is cut, and which group begins first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meadow.simulations.executors.groups import ClientTimes, Schedule, cut


@given(
    count=st.integers(0, 500),
    workers=st.integers(1, 20),
    per_worker=st.integers(1, 5),
    clients_max=st.integers(1, 70),
)
def test_groups_cover_the_cohort(
    count: int, workers: int, per_worker: int, clients_max: int
) -> None:
    """Every place once and in order, sizes equal up to one, none too large, work for everybody."""
    groups = cut(count, workers=workers, groups_per_worker=per_worker, clients_max=clients_max)
    assert [place for group in groups for place in group] == list(range(count))
    sizes = [len(group) for group in groups]
    assert not sizes or (max(sizes) - min(sizes) <= 1 and 1 <= max(sizes) <= clients_max)
    assert len(groups) >= min(count, workers * per_worker)


def test_a_cut_by_hand() -> None:
    """Ten clients for two workers with two groups each."""
    groups = cut(10, workers=2, groups_per_worker=2, clients_max=64)
    assert [list(group) for group in groups] == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]


def test_unknown_clients_count_as_the_mean() -> None:
    """Before anything was measured all are alike; later the last measurement counts."""
    times = ClientTimes(5)
    assert times.expected_s([1, 2, 3]) == 3 * times.expected_s([4]) > 0
    times.add({1: 2.0, 2: 4.0, 99: 1000.0})
    assert times.expected_s([1]) == 2.0
    assert times.expected_s([1, 2, 3]) == 9.0
    times.add({2: 8.0})
    assert times.expected_s([3, 77]) == 10.0


def test_the_longest_group_begins_first() -> None:
    """Equal ones in their order; a group whose worker was lost comes again."""
    schedule = Schedule([1.0, 5.0, 5.0, 2.0])
    assert [schedule.next(in_order=False) for _ in range(3)] == [1, 2, 3]
    schedule.put_back(2)
    assert schedule.next(in_order=True) == 0
    assert schedule.next(in_order=True) == 2
    assert not schedule
