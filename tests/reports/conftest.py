"""Run folders of any size, written as a run writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SETTINGS = (
    '[run]\nrounds = {rounds}\n[training]\nlearning_rate = {rate}\n[strategy]\nname = "fedavg"\n'
)

MakeRun = Callable[..., Path]


def row(number: int, **more: Any) -> dict[str, Any]:
    """Return a round's line of metrics.jsonl."""
    accuracy = 1 - math.exp(-number / 10)
    metrics = {"loss": 2.3 * (1 - accuracy), "accuracy": accuracy}
    return {
        "round": number,
        "duration_s": 0.5,
        "clients": 4,
        "failures": 0,
        "train": metrics,
        "evaluate": metrics if number % 2 == 0 else {},
        "server": metrics if number % 2 == 0 else {},
        "bytes_sent": 40_000,
        "bytes_received": 20_000,
        "privacy": None,
        **more,
    }


def lines(objects: list[dict[str, Any]]) -> str:
    """Return objects as JSON lines."""
    return "".join(json.dumps(each) + "\n" for each in objects)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run("name", rounds=3)` is a run's folder; further keys lie over each round's row."""

    def make(
        name: str,
        *,
        rounds: int = 6,
        rate: float = 0.1,
        status: str | None = "finished",
        cause: str | None = None,
        clients: list[dict[str, Any]] | None = None,
        **more: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        rows = [row(number, **more) for number in range(1, rounds + 1)]
        (folder / "meadow.toml").write_text(SETTINGS.format(rounds=rounds, rate=rate))
        (folder / "metrics.jsonl").write_text(lines(rows))
        if clients is not None:
            (folder / "clients.jsonl").write_text(lines(clients))
        if status is not None:
            parts = ("round", "train", "evaluate", "server")
            final = {part: rows[-1][part] for part in parts} if rows else None
            summary = {"status": status, "cause": cause, "rounds": rounds, "final": final}
            (folder / "summary.json").write_text(json.dumps({**summary, "best": final}))
        return folder

    return make
