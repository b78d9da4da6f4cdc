"""What `meadow plan` says of a round, beside what a real federation takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import federation, wait_until

pytestmark = pytest.mark.fleet

CONSTANT = Path(__file__).parents[2] / "benchmarks" / "apps" / "constant"
MODEL_MB = 64
CLIENTS = 2
TABLES = {
    "plain": (),
    "packed": ("compression.upload=int8", "compression.download=int8"),
    "adam": ("training.optimizer=adam", "strategy.server_optimizer=adam"),
}


@pytest.mark.parametrize("table", TABLES)
def test_bytes_and_memory(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes within 2 %, the memory of the processes at their largest within a third."""
    monkeypatch.setenv("MODEL_MB", str(MODEL_MB))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    app = shutil.copytree(CONSTANT, tmp_path / "constant")
    settings = [*TABLES[table], "run.rounds=200", f"run.min_clients={CLIENTS}"]
    said = planned(app, settings)
    with federation(tmp_path / "fleet", app, clients=CLIENTS) as fleet:
        run = fleet.submit(*settings)
        fleet.wait_for_round(run, 3)
        (worker,) = wait_until(fleet.workers, "a run worker")
        (trainer,) = wait_until(lambda: fleet.trainers(0), "a training process")
        server_bytes = largest(fleet.server.pid) + largest(worker)
        client_bytes = largest(fleet.clients[0].pid) + largest(trainer)
        row = fleet.rounds(run)[0]
    assert row["bytes_sent"] == pytest.approx(said["download"]["all_bytes"], rel=0.02)
    assert row["bytes_received"] == pytest.approx(said["upload"]["all_bytes"], rel=0.02)
    assert server_bytes == pytest.approx(said["memory of the server"]["all_bytes"], rel=0.33)
    assert client_bytes == pytest.approx(said["memory of a client"]["client_bytes"], rel=0.33)


def planned(app: Path, settings: list[str]) -> dict[str, dict[str, int]]:
    """Return the rows of the command, in a process of its own: it measures what a process takes."""
    options = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "meadow", "plan", str(app), "--clients", str(CLIENTS)]
    done = subprocess.run(
        [*command, *options, "--format", "json"], capture_output=True, check=True, text=True
    )
    return {row["what"]: row for row in json.loads(done.stdout)}


def largest(pid: int) -> int:
    """Return the largest resident set that a process has had, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024
