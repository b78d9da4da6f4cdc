"""Groups: where a cohort is cut, and which group begins first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, MessageType, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from meadow.flower.messages import params_to_arrays
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.processes import group_round
from meadow.simulations.executors.processes.group_round import GroupRound
from meadow.simulations.executors.processes.groups import ClientTimes, Schedule, cut, groups_worth
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.rounds.broadcast import Broadcast


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


def round_of(clients: int, folder: Path, times: ClientTimes | None = None) -> GroupRound:
    """Return a round of a model of a hundred values: sums of 800 bytes."""
    arrays = params_to_arrays({"weight": np.zeros((10, 10), np.float32)})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
    cohort = range(1, clients + 1)
    return GroupRound(
        Broadcast(content, MessageType.TRAIN, cohort, group_id="1", id_prefix="m-"),
        SimulatedClients(clients, run_id=1, run_config={}),
        folder / "round",
        workers=2,
        groups_per_worker=4,
        combined_clients_max=64,
        combine=True,
        times=times or ClientTimes(clients),
        sink=EventSink(),
    )


@pytest.mark.parametrize(("bytes_max", "groups"), [(1 << 20, 8), (6400, 8), (3200, 4), (10, 2)])
def test_sums_of_large_models_are_few(
    bytes_max: int, groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group hands over a sum in float64: where those are large, there is one a worker."""
    monkeypatch.setattr(group_round, "SUMS_BYTES_MAX", bytes_max)
    made = round_of(40, tmp_path)
    taken = 0
    while made.schedule:
        made.next_task()
        taken += 1
    assert taken == groups


def test_groups_cost_less_than_they_may() -> None:
    """A short round has a group a worker, a long one more; a large model's sums need a longer one."""
    assert groups_worth(0.02, values=0) == 1
    assert groups_worth(0.4, values=0) == 10
    assert groups_worth(0.4, values=250_000) == 1
    assert groups_worth(4.0, values=250_000) > 10
