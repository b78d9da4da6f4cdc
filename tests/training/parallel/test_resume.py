"""A round that was cut short goes on in the middle, and gives the update that it would have."""

from __future__ import annotations

from typing import Any

import pytest

from meadow.training.local.training import LocalTraining

from .conftest import Bench, distance

SETTINGS: dict[str, Any] = {
    "batch_size": 8,
    "epochs": 2,
    "optimizer": "adam",
    "learning_rate": 0.01,
}
STEPS = 14  # of 53 examples, twice


@pytest.fixture(scope="module")
def alone(bench: Bench) -> LocalTraining:
    """One process, with dropout."""
    bench.say("dropout", "")
    return bench.training(save_steps=3)


@pytest.mark.parametrize("step", [2, 5, 11])
def test_an_interrupted_round_goes_on(bench: Bench, alone: LocalTraining, step: int) -> None:
    """Params, buffers and means have the same bits, and at most three steps are repeated."""
    interrupted(bench, alone, step)


def test_interrupted_ranks_go_on(bench: Bench, pair: LocalTraining) -> None:
    """Two ranks, each with random numbers of its own, give the same bits too."""
    bench.say("dropout", "")
    interrupted(bench, pair, 11)


def interrupted(bench: Bench, training: LocalTraining, step: int) -> None:
    """Interrupt a round in a step, repeat it, and compare."""
    expected, samples, means = bench.train(training, **SETTINGS)
    passes = len(bench.passes(0))
    bench.say("raise-0", step)
    with pytest.raises(ValueError, match="a bad scan"):
        bench.train(training, key=f"again {step}", **SETTINGS)
    before = len(bench.passes(0))
    params, seen, told = bench.train(training, key=f"again {step}", **SETTINGS)
    assert distance(params, expected) == 0
    assert (seen, told) == (samples, means)
    assert before == step and passes == STEPS
    assert before - 1 + len(bench.passes(0)) <= STEPS + 3


def test_another_round_does_not_go_on(bench: Bench, alone: LocalTraining) -> None:
    """What is left of a round is of no use to another, and is removed."""
    bench.say("raise-0", 8)
    with pytest.raises(ValueError, match="a bad scan"):
        bench.train(alone, key="cut", **SETTINGS)
    bench.passes(0)
    bench.train(alone, key="next", **SETTINGS)
    assert len(bench.passes(0)) == STEPS
    assert len([*(bench.folder / "unfinished").iterdir()]) == 1


def test_other_settings_do_not_go_on(bench: Bench, alone: LocalTraining) -> None:
    """A round with other settings begins at its beginning, whatever it is called."""
    bench.say("raise-0", 8)
    with pytest.raises(ValueError, match="a bad scan"):
        bench.train(alone, key="same", **SETTINGS)
    bench.passes(0)
    bench.train(alone, key="same", **{**SETTINGS, "learning_rate": 0.1})
    assert len(bench.passes(0)) == STEPS
