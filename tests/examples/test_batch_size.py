"""The study of the batch size: its arithmetic, its tables, and a short run of all of it."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

FOLDER = Path(__file__).parent.parent.parent / "examples" / "batch_size"
TIME_LIMIT_S = 300


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, without leaving its folder on the path."""
    for extra in ("matplotlib", "mlxtend"):
        pytest.importorskip(extra)
    monkeypatch.syspath_prepend(FOLDER)
    for name in ("picture", "study"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import study

    for name in ("picture", "study"):
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    return study


def shown(study: ModuleType, *, target: float) -> str:
    """Return the table of two curves as text."""
    curves = [
        study.Curve(batch_size=8, epoch_s=2.0, accuracies=(0.9, 0.95, 0.94)),
        study.Curve(batch_size=80, epoch_s=0.5, accuracies=(0.2, 0.3, 0.6)),
    ]
    text = StringIO()
    Console(width=100, file=text).print(study.table_of(study.FEDAVG, curves, target=target))
    return text.getvalue()


def test_the_time_to_a_target_is_that_of_the_first_epoch_there(study: ModuleType) -> None:
    """Later epochs below the target change nothing, and an equal accuracy reaches it."""
    curve = study.Curve(batch_size=8, epoch_s=2.0, accuracies=(0.9, 0.95, 0.94, 0.96))
    assert (curve.epochs_to(0.95), curve.seconds_to(0.95), curve.best) == (2, 4.0, 0.96)
    assert (curve.epochs_to(0.97), curve.seconds_to(0.97)) == (None, None)


def test_the_learning_rate_is_proportional_up_to_a_bound(study: ModuleType) -> None:
    """Twice the batch, twice the rate, until it is 0.4."""
    rates = [study.learning_rate(study.SGD, size) for size in study.SIZES]
    assert rates == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.4, 0.4, 0.4])
    assert study.learning_rate(study.FEDAVG, 8) == pytest.approx(0.2)


def test_a_target_that_is_not_reached_is_said_to_be(study: ModuleType) -> None:
    """Only the size that never came there says so, and its best accuracy is shown."""
    lines = shown(study, target=0.95).splitlines()
    (small,) = [line for line in lines if "4.0" in line]
    (large,) = [line for line in lines if "all 80" in line]
    assert "not reached" not in small
    assert "not reached" in large and "0.600" in large


def test_a_batch_is_never_larger_than_a_client_has(study: ModuleType) -> None:
    """50 clients share 4,000 images; what the app loads agrees with what the study says."""
    import meadow

    assert (study.SGD.batch_size_max, study.FEDAVG.batch_size_max) == (4_000, 80)
    config = meadow.load_config(FOLDER / "meadow.toml")
    assert config.simulation.clients == study.FEDAVG.clients
    assert (config.training.epochs, config.training.momentum) == (1, 0)


def test_the_study_runs(tmp_path: Path) -> None:
    """The quick study prints both tables and writes a picture that is not empty."""
    for extra in ("matplotlib", "mlxtend"):
        pytest.importorskip(extra)
    picture = tmp_path / "study.png"
    command = [sys.executable, str(FOLDER / "study.py"), "--quick", "--out", str(picture)]
    done = subprocess.run(
        [*command, "--target", "0.2"],
        check=False,
        cwd=tmp_path,
        timeout=TIME_LIMIT_S,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "SGD, one machine" in done.stdout and "FedAvg, 50 clients" in done.stdout
    assert "epochs to 0.2" in done.stdout and "all 80" in done.stdout
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size > 20_000
