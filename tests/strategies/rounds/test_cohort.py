"""Drawing cohorts, and waiting for enough clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.strategies.rounds.cohort import draw_cohort, wait_for_clients


def draw(clients, *, cohort=0.5, at_least=1, seed=0, round_number=1):
    return draw_cohort(
        clients, cohort=cohort, at_least=at_least, seed=seed, round_number=round_number
    )


@pytest.mark.parametrize(
    ("count", "cohort", "at_least", "size"),
    [
        (10, 1.0, 2, 10),
        (10, 0.3, 2, 3),
        (10, 0.29, 2, 2),
        (10, 0.1, 2, 2),
        (10, 1, 1, 1),
        (10, 4, 2, 4),
        (10, 40, 2, 10),
        (100, 0.29, 2, 29),
        (1, 1.0, 2, 1),
        (0, 1.0, 1, 0),
    ],
)
def test_sizes(count, cohort, at_least, size):
    """A float is a fraction, an int a number; the quorum is the least, everybody the most."""
    assert len(draw(range(count), cohort=cohort, at_least=at_least)) == size


@given(st.sets(st.integers(1, 2**63 - 1), min_size=1, max_size=60), st.integers(0, 2**62))
def test_a_cohort_depends_on_the_set_of_clients_only(clients, seed):
    """Ascending, without repetition, drawn from those there, and the same in any order."""
    cohort = draw(clients, seed=seed)
    assert cohort == sorted(set(cohort))
    assert set(cohort) <= clients
    assert cohort == draw(sorted(clients, reverse=True), seed=seed)


@given(st.sets(st.integers(1, 10**6), min_size=5, max_size=60), st.integers(0, 2**62))
def test_a_client_that_leaves_changes_the_cohort_by_one(clients, seed):
    """Whoever else was drawn still is, so a reconnecting fleet repeats its rounds."""
    cohort = draw(clients, cohort=3, seed=seed)
    gone = cohort[0]
    assert set(cohort) - {gone} < set(draw(clients - {gone}, cohort=3, seed=seed))


def test_everybody_is_drawn_equally_often():
    """Over 4,000 rounds, each of 20 clients is in half of the cohorts (7 sigma is 0.055)."""
    counts = dict.fromkeys(range(1, 21), 0)
    for number in range(4000):
        for client in draw(counts, round_number=number):
            counts[client] += 1
    assert all(abs(count / 4000 - 0.5) < 0.055 for count in counts.values())


def test_rounds_and_seeds_draw_different_cohorts():
    """A cohort depends on the seed and on the round."""
    cohorts = [draw(range(100), seed=s, round_number=n) for s in range(3) for n in range(3)]
    assert len({tuple(cohort) for cohort in cohorts}) == 9


def test_waiting_polls_a_plain_grid(kit):
    """Until enough clients are there; whoever watches hears of every change."""
    grid, heard = kit.Grid(kit.drift, []), []
    wait_for_clients(
        grid, 3, emit=heard.append, sleep=lambda _: grid.nodes.append(len(grid.nodes) + 1)
    )
    assert heard == [0, 1, 2, 3]


def test_waiting_ends_when_the_grid_stops(kit):
    """A run that is asked to stop does not wait for clients that may never come."""
    grid = kit.Grid(kit.drift, [4])
    slept = []
    grid.is_stopping = lambda: len(slept) == 2
    assert wait_for_clients(grid, 3, emit=lambda _: None, sleep=slept.append) == [4]
