"""What a run says of the disk before it begins, and what it takes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from meadow.run.disk_needs import BESIDE_BYTES
from meadow.server.daemon.retention import folder_bytes

from .processes import Federation, federation, meadow, wait_until

pytestmark = pytest.mark.fleet

CONSTANT = Path(__file__).parents[2] / "benchmarks" / "apps" / "constant"
MODEL_MB, CLIENTS, ROUNDS = 24, 2, 4
SETTINGS = (f"run.rounds={ROUNDS}", f"run.min_clients={CLIENTS}", "evaluation.every=1")


def shown(fleet: Federation, run: int) -> dict[str, Any]:
    """Return what `meadow run show` says."""
    return meadow("run", "show", str(run), "--dir", str(fleet.server_dir))


def said_of(fleet: Federation, run: int) -> dict[str, Any]:
    """Return what a run has said it will take."""
    said = [each for each in shown(fleet, run)["events"] if each["kind"] == "disk_needed"]
    assert len(said) == 2, "before the end and after it"
    return dict(said[-1])


def test_no_more_than_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota that the run would outgrow ends it before its first instruction, with a sentence; with a larger one it
    is resumed, and takes no more at the server and at its clients than it has said."""
    monkeypatch.setenv("MODEL_MB", str(MODEL_MB))
    app = shutil.copytree(CONSTANT, tmp_path / "constant")
    with federation(tmp_path / "fleet", app, clients=CLIENTS) as fleet:
        toml = fleet.server_dir / "server.toml"
        without = toml.read_text()
        toml.write_text(f"{without}\n[storage]\nbytes_max = {4 * MODEL_MB * 1_000_000}\n")
        run = fleet.submit(*SETTINGS)
        ended = fleet.wait_for_end(run)
        assert ended["status"] == "failed" and ended["rounds"] == 0
        assert "take up to 128.0 MB of the server's disk" in ended["cause"]
        assert "raise it" in ended["cause"] and f"meadow run resume {run}" in ended["cause"]
        toml.write_text(without)
        wait_until(lambda: shown(fleet, run)["status"] == "failed", "the run's end is recorded")
        meadow("run", "resume", str(run), "--dir", str(fleet.server_dir))
        used = {"server": 0, "client": 0}

        def is_over() -> bool:
            server = [fleet.run_dir(run), fleet.server_dir / "spool"]
            used["server"] = max(used["server"], folder_bytes(*server))
            for index in range(CLIENTS):
                used["client"] = max(used["client"], folder_bytes(fleet.client_dir(index)))
            return (fleet.run_dir(run) / "summary.json").exists()

        wait_until(is_over, "the run's end")
        assert [row["clients"] for row in fleet.rounds(run)] == [CLIENTS] * ROUNDS
        said = said_of(fleet, run)
        assert said["server_bytes"] == pytest.approx(5 * MODEL_MB * 1e6 + BESIDE_BYTES, rel=0.001)
        for who, key in {"server": "server_bytes", "client": "client_bytes"}.items():
            assert MODEL_MB * 1e6 < used[who] <= said[key], who
