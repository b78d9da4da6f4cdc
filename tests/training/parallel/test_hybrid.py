"""Two copies of a model, each spread over two ranks, give the update of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meadow.training.local.training import LocalTraining

from .conftest import Bench, distance

SETTINGS: list[dict[str, Any]] = [
    {"batch_size": 13, "accumulation_steps": 2, "optimizer": "adam", "learning_rate": 0.01},
    {
        "batch_size": 26,  # the last batch has a single example: one copy has none
        "learning_rate": 0.1,
        "momentum": 0.9,
        "proximal_mu": 0.5,
        "gradient_clip_norm": 0.2,
    },
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Return an app whose model is no nn.Sequential, and whose task lists its stages."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "stages").touch()
    return Bench(folder)


@pytest.fixture(scope="module", params=["fsdp", "pipeline"])
def grid(bench: Bench, request: pytest.FixtureRequest) -> Iterator[LocalTraining]:
    """Four ranks: two copies of two."""
    bench.say("sequence", "")
    device = {"processes": 4, "copies": 2, "copy_parallel": request.param, "save_steps": 2}
    device["pipeline_schedule"] = "gpipe"
    training = bench.training(parallel="hybrid", rank_timeout_s=20.0, **device)
    yield training
    training.close()


def test_four_ranks_make_one_update(bench: Bench, grid: LocalTraining) -> None:
    """Params, samples and metrics are those of one process with the same batches."""
    for settings in SETTINGS:
        bench.require_same_update(grid, **settings)


def test_a_killed_rank_costs_a_few_steps(
    bench: Bench, grid: LocalTraining, request: pytest.FixtureRequest
) -> None:
    """Of this copy or of the other: all four begin anew, and the params have the same bits."""
    rank = {"fsdp": 1, "pipeline": 3}[request.node.callspec.params["grid"]]
    expected, *_ = bench.train(grid, **SETTINGS[0])
    bench.say(f"kill-{rank}", 3)
    ours, *_ = bench.train(grid, **SETTINGS[0])
    assert not (bench.folder / f"kill-{rank}").exists()
    assert distance(ours, expected) == 0
