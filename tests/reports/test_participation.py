"""Participation: exact while small, bounded when large, and fair when sampled."""

from __future__ import annotations

import numpy as np

from meadow.reports.participation import CLIENT_BINS, ROUND_BINS, Participation


def test_few_clients_and_rounds_are_exact() -> None:
    """Every client is a line, every round a column, ids in order; texts come after numbers."""
    counted = Participation()
    counted.add(1, [9, 2])
    counted.add(2, [2, "site-b"])
    counted.add(3, [2, 2, None, 1.5])
    picture = counted.picture()
    assert picture is not None
    assert picture.ids == (2, 9, "site-b")
    assert picture.shares.tolist() == [[1, 1, 1], [1, 0, 0], [0, 1, 0]]
    assert picture.counts.tolist() == [3, 1, 1]
    assert (picture.clients_a_bin, picture.rounds_a_bin, picture.sample) == (1, 1, 1)


def test_a_round_counts_once() -> None:
    """A round that was written twice changes nothing."""
    counted = Participation()
    for _ in range(2):
        counted.add(1, [1])
    picture = counted.picture()
    assert picture is not None and picture.counts.tolist() == [1]


def test_nobody_gives_no_picture() -> None:
    """Without clients there is nothing to draw."""
    counted = Participation()
    counted.add(1, [])
    assert counted.picture() is None


def test_many_clients_and_rounds_give_a_bounded_picture() -> None:
    """10,000 clients by 1,000 rounds: few cells, and every participation is in them."""
    counted = Participation()
    rng = np.random.default_rng(1)
    for number in range(1, 1001):
        counted.add(number, rng.choice(10_000, size=100, replace=False).tolist())
    picture = counted.picture()
    assert picture is not None
    assert picture.shares.shape[0] <= CLIENT_BINS and picture.shares.shape[1] <= ROUND_BINS
    assert (picture.clients_a_bin, picture.rounds_a_bin) == (63, 4)
    assert picture.counts.sum() == 100 * 1000
    np.testing.assert_allclose(np.nanmean(picture.shares), 0.01, rtol=0.02)


def test_a_rare_round_number_does_not_grow_memory() -> None:
    """A run whose rounds jump is binned like any other."""
    counted = Participation()
    counted.add(1, [1])
    counted.add(10**9, [1])
    picture = counted.picture()
    assert picture is not None and picture.shares.shape[1] <= ROUND_BINS
    assert picture.counts.tolist() == [2]


def test_a_sample_is_fair_to_late_clients() -> None:
    """Of more clients than are counted, early and late ones are in the sample alike."""
    counted = Participation(clients_max=400)
    for number in range(1, 101):
        counted.add(number, range(number * 100, number * 100 + 100))
    picture = counted.picture()
    assert picture is not None
    assert len(picture.ids) <= 400 and picture.sample in (32, 64)
    assert picture.counts.tolist() == [1] * len(picture.ids)
    late = sum(isinstance(each, int) and each >= 5100 for each in picture.ids)
    assert 0.35 < late / len(picture.ids) < 0.65
