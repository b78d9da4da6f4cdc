"""Two ranks give what one process gives."""

from __future__ import annotations

from typing import Any

import pytest

from meadow.client.local_training import LocalTraining
from meadow.errors import DataError

from .conftest import Bench, distance

PLAIN = {"learning_rate": 0.1, "epochs": 2}


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 8},  # 53 examples: the last batch has 5
        {"batch_size": 13, "momentum": 0.9},  # the last batch has a single one
        {"batch_size": 5, "accumulation_steps": 3, "optimizer": "adam", "learning_rate": 0.01},
        {"batch_size": 16, "proximal_mu": 0.5, "gradient_clip_norm": 0.5},
    ],
)
def test_two_ranks_make_one_update(
    bench: Bench, pair: LocalTraining, settings: dict[str, Any]
) -> None:
    """Params, buffers, samples and metrics are those of one process with the same batches."""
    settings = PLAIN | settings
    params, samples, means = bench.train(bench.training(), **settings)
    ours, seen, told = bench.train(pair, **settings)
    assert distance(ours, params) < 1e-5
    assert seen == samples == 53
    assert told == pytest.approx(means, rel=1e-5)


@pytest.mark.parametrize("end", ["kill-1", "stop-1"])
def test_a_lost_rank_costs_no_round(bench: Bench, pair: LocalTraining, end: str) -> None:
    """A rank that is killed or hangs in the middle is replaced, and the update is the same."""
    expected, *_ = bench.train(pair, batch_size=8, **PLAIN)
    bench.say(end, 9)
    ours, *_ = bench.train(pair, batch_size=8, **PLAIN)
    assert not (bench.folder / end).exists()
    assert distance(ours, expected) == 0


def test_what_a_rank_raises_is_said(bench: Bench, pair: LocalTraining) -> None:
    """An exception of the app in another rank is this round's, with its place in the app."""
    bench.say("raise-1", 1)
    with pytest.raises(DataError, match=r"in another process: ValueError: a bad scan \(task.py"):
        bench.train(pair, batch_size=8)
    expected, *_ = bench.train(bench.training(), batch_size=8)
    assert distance(bench.train(pair, batch_size=8)[0], expected) < 1e-5
