"""The best round: which metric decides, and which way."""

from __future__ import annotations

import pytest

from meadow.strategies.rounds.progress import EarlyStopping, Progress


def row(number, **parts):
    return {"round": number, "train": {}, "evaluate": {}, "server": {}} | parts


@pytest.mark.parametrize(
    ("parts", "metric"),
    [
        (
            {"server": {"accuracy": 1.0, "loss": 1.0}, "evaluate": {"accuracy": 1.0}},
            "server.accuracy",
        ),
        ({"server": {"loss": 1.0}, "evaluate": {"accuracy": 1.0}}, "evaluate.accuracy"),
        ({"server": {"loss": 1.0}, "evaluate": {"loss": 1.0}}, "server.loss"),
        ({"evaluate": {"loss": 1.0}}, "evaluate.loss"),
    ],
)
def test_the_first_evaluated_round_decides_the_metric(parts, metric):
    """Accuracy before loss, the server's data before the clients'; then it stays."""
    progress = Progress().after(row(1), None)
    assert progress.best is None
    progress = progress.after(row(2, **parts), None)
    assert progress.best["metric"] == metric
    later = {"server": {"accuracy": 2.0, "loss": 0.5}, "evaluate": {"accuracy": 2.0, "loss": 0.5}}
    later_best = progress.after(row(3, **later), None).best
    assert (later_best["metric"], later_best["round"]) == (metric, 3)


def test_ties_go_to_the_first_and_stale_rounds_are_counted():
    """Equal is no improvement, not finite neither; a round without the metric is not counted."""
    progress = Progress()
    for number, loss in enumerate([2.0, 2.0, None, 3.0], start=1):
        progress = progress.after(row(number, evaluate={"loss": loss}), None)
    progress = progress.after(row(5), None)
    assert (progress.best["round"], progress.stale_rounds) == (1, 3)
    assert progress.after(row(6, evaluate={"loss": 1.0}), None).stale_rounds == 0


def test_a_start_that_is_not_finite_is_no_best():
    """The first finite value is the first best."""
    stopping = EarlyStopping(metric="train.loss", patience=2)
    progress = Progress().after(row(1, train={"loss": None}), stopping)
    assert (progress.best, progress.stale_rounds) == (None, 1)
    assert not progress.is_exhausted(stopping)
    assert progress.after(row(2, train={"loss": None}), stopping).is_exhausted(stopping)
    assert progress.after(row(2, train={"loss": 9.0}), stopping).best["round"] == 2
