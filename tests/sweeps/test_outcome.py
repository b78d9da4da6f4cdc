"""Outcomes: means and deviations over seeds, by hand, and which combination is the best."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from meadow.sweeps.combinations import Combination, grid_of
from meadow.sweeps.outcome import Spread, best_group, compared_metric, groups_of
from meadow.sweeps.plan import RunProgress


def finished(accuracy: float, loss: float = 1.0) -> RunProgress:
    """Return a run's end with these metrics of the server."""
    metrics = {"accuracy": accuracy, "loss": loss}
    return RunProgress(status="finished", final={"round": 1, "train": {}, "server": metrics})


def runs(
    settings: list[str], states: Sequence[RunProgress]
) -> list[tuple[Combination, RunProgress]]:
    """Return the runs of a grid with these ends."""
    return list(zip(grid_of(settings).combinations, states, strict=True))


def test_seeds_are_repetitions() -> None:
    """0.5, 0.7, 0.9: mean 0.7, deviation of a sample 0.2; a failed run does not count."""
    ends = [
        finished(0.5),
        finished(0.7),
        finished(0.9),
        RunProgress(status="failed"),
        finished(0.4),
    ]
    groups = groups_of(runs(["a.rate=1,2", "run.seed=1,2,3"], [*ends, finished(0.4)]))
    assert [group.settings for group in groups] == [{"a.rate": "1"}, {"a.rate": "2"}]
    spread = groups[0].metrics["server.accuracy"]
    assert (spread.mean, spread.std, spread.count) == (
        pytest.approx(0.7),
        pytest.approx(0.2),
        3,
    )
    assert (groups[1].finished, len(groups[1].runs)) == (2, 3)
    assert groups[1].metrics["server.accuracy"] == Spread(mean=0.4, std=0.0, count=2)


def test_without_seeds_every_combination_is_alone() -> None:
    """A single run has a mean and no deviation."""
    groups = groups_of(runs(["a.rate=1,2"], [finished(0.5), finished(0.6)]))
    assert [group.metrics["server.accuracy"].std for group in groups] == [None, None]


def test_the_best_is_high_or_low() -> None:
    """Of an accuracy the highest mean, of a loss the lowest."""
    groups = groups_of(runs(["a.rate=1,2"], [finished(0.5, 1.0), finished(0.6, 2.0)]))
    assert compared_metric(groups, None) == "server.accuracy"
    assert compared_metric(groups, "train.f1") is None
    best = best_group(groups, "server.accuracy")
    assert best is not None and best.settings == {"a.rate": "2"}
    lowest = best_group(groups, "server.loss")
    assert lowest is not None and lowest.settings == {"a.rate": "1"}


def test_a_diverged_run_has_no_value() -> None:
    """Not finite is none; where nothing was measured there is no best."""
    groups = groups_of(runs(["a.rate=1,2"], [finished(math.nan), RunProgress(status="waiting")]))
    assert list(groups[0].metrics) == ["server.loss"] and not groups[1].metrics
    assert best_group(groups, "server.accuracy") is None
