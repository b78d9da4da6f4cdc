"""Four ranks give the update of one process, in every form."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Bench

SETTINGS: list[dict[str, Any]] = [
    {"batch_size": 13, "accumulation_steps": 2, "optimizer": "adam", "learning_rate": 0.01},
    {
        "batch_size": 26,  # the last batch has a single example: three ranks of four have none
        "learning_rate": 0.1,
        "momentum": 0.9,
        "proximal_mu": 0.5,
        "gradient_clip_norm": 0.2,
    },
]


@pytest.mark.parametrize("form", ["ddp", "fsdp", "tensor", "pipeline"])
def test_four_ranks_make_one_update(bench: Bench, form: str) -> None:
    """Params, samples and metrics are those of one process with the same batches."""
    if form in ("tensor", "pipeline"):
        bench.say("sequence", "")  # layers enough for all, and with as many outputs
    spread = bench.training(parallel=form, processes=4, rank_timeout_s=60.0)
    try:
        for settings in SETTINGS:
            bench.require_same_update(spread, **settings)
    finally:
        spread.close()
