"""Runs that differ in their seed alone: one curve with a band."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meadow.reports.page import report_page
from meadow.reports.run_record import read_run
from meadow.reports.seeds import over_seeds, seed_groups
from meadow.reports.shown_run import show_runs

from .conftest import MakeRun


def seeded(
    make_run: MakeRun, name: str, *, seed: int, rate: float, loss: float, rounds: int
) -> Path:
    folder = make_run(name, rounds=rounds, rate=rate, train={"loss": loss}, evaluate={}, server={})
    text = (folder / "meadow.toml").read_text().replace("[run]", f"[run]\nseed = {seed}")
    (folder / "meadow.toml").write_text(text.replace(f"rounds = {rounds}", "rounds = 6"))
    return folder


@pytest.fixture
def folders(make_run: MakeRun) -> list[Path]:
    """Two rates; one with seeds 1 to 3, of which one has stopped early, one with a single seed."""
    told = [(1, 0.1, 1.0, 6), (2, 0.1, 2.0, 6), (3, 0.1, 6.0, 3), (1, 0.5, 9.0, 6)]
    return [
        seeded(make_run, f"run-{place}", seed=seed, rate=rate, loss=loss, rounds=rounds)
        for place, (seed, rate, loss, rounds) in enumerate(told)
    ]


def test_the_mean_and_one_deviation(folders: list[Path]) -> None:
    """By round, of the runs that have it; a single run is its own mean, without an area."""
    groups = seed_groups(show_runs([read_run(folder) for folder in folders]))
    assert [group.name for group in groups] == [
        "training.learning_rate = 0.1, 3 seeds",
        "training.learning_rate = 0.5, 1 seed",
    ]
    (panel,) = over_seeds(groups)
    line, single = panel.lines
    band, none = panel.bands
    assert line.y.tolist() == [3.0] * 3 + [1.5] * 3
    apart = np.std([1, 2, 6], ddof=1), np.std([1, 2], ddof=1)
    np.testing.assert_allclose(band.high - line.y, np.repeat(apart, 3))
    np.testing.assert_allclose(line.y - band.low, np.repeat(apart, 3))
    assert single.y.tolist() == [9.0] * 6 and np.isnan(none.low).all()
    assert len({line.colour, single.colour}) == 2


def test_the_page_has_them_where_there_are_some(folders: list[Path]) -> None:
    """A section of their own; not for runs that differ in anything else, or in nothing."""
    heading = "Metrics by round: mean over seeds"
    page = report_page([read_run(folder) for folder in folders])
    assert heading in page and "training.learning_rate = 0.1, 3 seeds" in page
    for others in (folders[2:], folders[:1], [folders[0], folders[0]]):
        assert heading not in report_page([read_run(folder) for folder in others])
