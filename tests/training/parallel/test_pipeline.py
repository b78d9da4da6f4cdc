"""Layers on two ranks give the update of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meadow.errors import DataError
from meadow.training.local.training import LocalTraining
from meadow.training.parallel.stages import cut

from .conftest import Bench, distance

SETTINGS: list[dict[str, Any]] = [
    {"batch_size": 8, "learning_rate": 0.1, "epochs": 2},
    {"batch_size": 13, "accumulation_steps": 2, "optimizer": "adam", "learning_rate": 0.01},
    {
        "batch_size": 16,
        "learning_rate": 0.1,
        "momentum": 0.9,
        "proximal_mu": 0.5,
        "gradient_clip_norm": 0.2,
    },
]


@pytest.fixture(scope="module")
def spread(bench: Bench) -> Iterator[LocalTraining]:
    """Two ranks with some layers each."""
    bench.say("sequence", "")
    training = bench.training(parallel="pipeline", processes=2, save_steps=2)
    yield training
    training.close()


@pytest.mark.parametrize("settings", SETTINGS)
def test_two_ranks_make_one_update(
    bench: Bench, spread: LocalTraining, settings: dict[str, Any]
) -> None:
    """Params, samples and metrics are those of one process with the same batches."""
    bench.require_same_update(spread, **settings)


def test_a_killed_rank_costs_a_few_steps(bench: Bench, spread: LocalTraining) -> None:
    """The last rank is killed in the middle; the params have the same bits."""
    expected, *_ = bench.train(spread, **SETTINGS[0])
    bench.say("kill-1", 30)
    ours, *_ = bench.train(spread, **SETTINGS[0])
    assert not (bench.folder / "kill-1").exists()
    assert distance(ours, expected) == 0


def test_what_cannot_be_cut_is_refused(bench: Bench, spread: LocalTraining) -> None:
    """A module that is no sequence is a sentence, not a wrong model."""
    (bench.folder / "sequence").unlink()
    with pytest.raises(DataError, match=r"needs a model that is an nn\.Sequential"):
        bench.train(spread, batch_size=8, seed=3)  # another seed: the model is built again


@pytest.mark.parametrize(
    ("sizes", "parts", "cuts"),
    [
        ([1, 1, 1, 1], 2, [0, 2, 4]),
        ([40, 0, 0, 1040, 0, 1040, 0, 27], 2, [0, 4, 8]),
        ([0, 0, 9], 3, [0, 1, 2, 3]),
        ([9, 0, 0], 3, [0, 1, 2, 3]),
        ([5], 1, [0, 1]),
    ],
)
def test_cuts_are_by_params(sizes: list[int], parts: int, cuts: list[int]) -> None:
    """Parts have about as many params, and a layer at least."""
    assert cut(sizes, parts) == cuts
