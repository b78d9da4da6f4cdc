"""clients.jsonl: reference numbers of the spread, and whatever may be missing in it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from meadow.errors import ConfigError
from meadow.reports.client_record import lower_is_better, read_clients, spread_of

from .conftest import lines


def test_spread_reference_numbers() -> None:
    """Of 1 to 21: percentiles interpolate linearly, and the worst tenth is three clients."""
    values = np.arange(1.0, 22.0)
    worst_loss = spread_of(values, lower=True)
    assert worst_loss == {"p10": 3.0, "median": 11.0, "p90": 19.0, "worst": 20.0}
    assert spread_of(values, lower=False)["worst"] == 2.0
    assert spread_of(np.array([4.0]), lower=True) == dict.fromkeys(worst_loss, 4.0)
    assert all(math.isnan(value) for value in spread_of(np.array([]), lower=True).values())


@pytest.mark.parametrize(
    ("metric", "lower"),
    [("train.loss", True), ("evaluate.accuracy", False), ("train.RMSE", True), ("a.f1", False)],
)
def test_direction_of_metrics(metric: str, lower: bool) -> None:
    """Whose worst are the high values is told by the metric's name."""
    assert lower_is_better(metric) is lower


def test_a_stream_of_rounds(tmp_path: Path) -> None:
    """Nulls and missing parts are left out; late clients are counted."""
    path = tmp_path / "clients.jsonl"
    first = {
        "round": 1,
        "clients": [4, 7, 9],
        "examples": [18, 18, 17],
        "train": {"loss": [1.0, None, 3.0]},
        "evaluate": {"clients": [4, 9], "accuracy": [0.25, 0.75]},
        "late": [7],
        "failed": [],
    }
    path.write_text(lines([first, {"round": 2, "clients": [4], "train": {"loss": [2.0]}}]))
    record = read_clients(path)
    assert list(record.spreads) == ["train.loss", "evaluate.accuracy"]
    assert record.spreads["train.loss"].column("median").tolist() == [2.0, 2.0]
    assert record.spreads["evaluate.accuracy"].column("worst").tolist() == [0.25]
    assert record.late.column("late").tolist() == [1, 0]
    assert record.picture is not None and record.picture.ids == (4, 7, 9)


def test_odd_lines_do_not_break_it(tmp_path: Path) -> None:
    """What has another type than it should is left out; without a round the line is refused."""
    path = tmp_path / "clients.jsonl"
    odd = {"clients": {"a": 1}, "train": [1], "evaluate": {"loss": "x", "a": [{}]}, "late": 3}
    path.write_text(lines([{"round": 1, **odd}]))
    assert read_clients(path).picture is None
    path.write_text(lines([odd]))
    with pytest.raises(ConfigError, match=r"clients.jsonl: round must be"):
        read_clients(path)


def test_no_file_is_an_empty_record(tmp_path: Path) -> None:
    """Runs of an earlier version have no clients.jsonl."""
    record = read_clients(tmp_path / "clients.jsonl")
    assert not record.spreads and record.picture is None
