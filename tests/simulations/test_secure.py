"""`meadow simulate` with secure aggregation: FedAvg's numbers, and the same for the same seed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from meadow.errors import ConfigError
from meadow.simulations.run import resume, simulate

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
SETTINGS = ["run.rounds=2", "run.min_clients=3", "simulation.clients=4"]
SECURE = [*SETTINGS, "privacy.secure_aggregation.enabled=true"]


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_model_is_that_of_plain_averaging(tmp_path: Path) -> None:
    """Within the steps of the fixed-point numbers, and so are the metrics."""
    plain = simulate(DIGITS, overrides=SETTINGS, executor="sequential", out=tmp_path / "plain")
    secure = simulate(DIGITS, overrides=SECURE, out=tmp_path / "secure")
    assert secure["status"] == "finished"
    expected = load_file(tmp_path / "plain" / "model.safetensors")
    for name, values in load_file(tmp_path / "secure" / "model.safetensors").items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-4)
    for part in ("train", "evaluate"):
        assert secure["final"][part] == pytest.approx(plain["final"][part], abs=1e-2)
    assert all(row["clients"] == 4 for row in rows(tmp_path / "secure"))


def test_same_seed_same_model(tmp_path: Path) -> None:
    """Also when the run is continued from its first round."""
    for name in ("one", "other"):
        simulate(DIGITS, overrides=SECURE, out=tmp_path / name)
    simulate(DIGITS, overrides=[*SECURE, "run.rounds=1"], out=tmp_path / "short")
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "other"))
    assert one == other
    assert resume(tmp_path / "short")["status"] == "finished"


def test_executors_that_cannot_are_refused(tmp_path: Path) -> None:
    """Before there is a folder."""
    with pytest.raises(ConfigError, match='must be "sequential"'):
        simulate(DIGITS, overrides=SECURE, executor="vectorized", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
