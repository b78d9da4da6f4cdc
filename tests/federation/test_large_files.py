"""A model so large that its files are written over: killed at any point, it is the same model."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from .processes import federation, kill_9, meadow, wait_until

pytestmark = pytest.mark.fleet

CONSTANT = Path(__file__).parents[2] / "benchmarks" / "apps" / "constant"
MODEL_MB = 3
ROUNDS = 12
SETTINGS = (f"run.rounds={ROUNDS}", "run.min_clients=2")


def test_files_are_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's model is the simulation's, to the byte, whoever is killed meanwhile."""
    monkeypatch.setenv("MODEL_MB", str(MODEL_MB))
    app = shutil.copytree(CONSTANT, tmp_path / "constant")
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    simulated = tmp_path / "simulated"
    meadow("simulate", str(app), "--executor", "sequential", "--out", str(simulated), *options)
    with federation(tmp_path / "fleet", app, clients=2) as fleet:
        run = fleet.submit(*SETTINGS)
        fleet.wait_for_round(run, 5)
        fleet.server.kill()
        fleet.start_server()
        fleet.wait_for_round(run, 7)
        fleet.clients[0].kill()
        fleet.clients[0].start()
        fleet.wait_for_round(run, 9)
        time.sleep(0.02)
        for pid in wait_until(lambda: fleet.trainers(1), "a training process"):
            kill_9(pid)
        assert fleet.wait_for_end(run)["status"] == "finished"
        assert [row["clients"] for row in fleet.rounds(run)] == [2] * ROUNDS
        assert fleet.model(run) == (simulated / "model.safetensors").read_bytes()
        for index in range(2):
            spare = list((fleet.client_dir(index) / "spare").iterdir())
            assert 1 <= len(spare) <= 4
        spool = fleet.server_dir / "spool" / "spare"
        wait_until(lambda: not list(spool.iterdir()), "the spool is empty")
