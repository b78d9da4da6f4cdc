"""Params that are spread over ranks give the update of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meadow.training.local.training import LocalTraining

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


@pytest.fixture(scope="module", params=["fsdp", "tensor"])
def spread(bench: Bench, request: pytest.FixtureRequest) -> Iterator[LocalTraining]:
    """Two ranks that hold parts of the params."""
    training = bench.training(parallel=request.param, processes=2, save_steps=2)
    yield training
    training.close()


@pytest.mark.parametrize("settings", SETTINGS)
def test_two_ranks_make_one_update(
    bench: Bench, spread: LocalTraining, settings: dict[str, Any]
) -> None:
    """Params, buffers, samples and metrics are those of one process with the same batches."""
    bench.require_same_update(spread, **settings)


def test_an_interrupted_round_goes_on(bench: Bench, spread: LocalTraining) -> None:
    """Every rank goes on from its own parts, and the params have the same bits."""
    expected, *_ = bench.train(spread, **SETTINGS[0])
    bench.say("kill-1", 10)
    bench.passes(1)
    ours, *_ = bench.train(spread, **SETTINGS[0])
    assert distance(ours, expected) == 0
    assert len(bench.passes(1)) <= 14 + 3


def test_heads_are_divided(bench: Bench, spread: LocalTraining) -> None:
    """Attention layers give the same update, masks and the weights that they return included."""
    bench.say("attention", "")
    (bench.folder / "heads-are-divided").unlink(missing_ok=True)
    settings = {"batch_size": 8, "learning_rate": 0.1, "epochs": 2, "seed": 3}  # built again
    params, _, means = bench.train(bench.training(), **settings)
    ours, _, told = bench.train(spread, **settings)
    (bench.folder / "attention").unlink()
    assert distance(ours, params) < 1e-5
    assert told == pytest.approx(means, rel=1e-5)
    assert (bench.folder / "heads-are-divided").exists() == ("tensor" in spread.text)
