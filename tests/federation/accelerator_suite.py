"""A real federation whose two agents train on two devices of one machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from .processes import federation, meadow

SCANS = Path(__file__).parents[1] / "training" / "parallel" / "scans"
SETTINGS = (
    "run.rounds=2",
    "run.min_clients=2",
    "simulation.clients=2",
    "training.batch_size=8",
    "training.learning_rate=0.05",
)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SCANS, tmp_path / "scans"))


def test_two_agents_on_two_devices(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each names its device as torch does, and the model is that of the CPU."""
    with federation(tmp_path, app, clients=2) as fleet:
        for index in range(2):
            file = fleet.client_dir(index) / "client.toml"
            told = file.read_text().replace("[policy]\n", "[policy]\nreport_device = true\n")
            device = f'\n[device]\ndevice = "strict:{index}"\npin_memory = true\n'
            file.write_text(told.replace("\n[device]\n", device))
        run = fleet.submit(*SETTINGS)
        assert fleet.wait_for_end(run)["status"] == "finished"
        rows = fleet.rounds(run)
        assert [(row["clients"], row["failures"]) for row in rows] == [(2, 0)] * 2, rows
        # of the device: the process itself holds hundreds
        assert all(0 < row["train"]["peak-memory-mb"] < 50 for row in rows), rows
        made = load_file(fleet.run_dir(run) / "model.safetensors")
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    monkeypatch.setenv("MEADOW_DEVICE", "cpu")
    plain = tmp_path / "plain"
    meadow("simulate", str(app), "--executor", "sequential", "--out", str(plain), *options)
    expected = load_file(plain / "model.safetensors")
    assert list(made) == list(expected)
    for name, values in expected.items():
        assert (made[name] - values).abs().max() <= 1e-5, name
