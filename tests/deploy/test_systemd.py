"""The units in deploy/systemd: systemd accepts them, and finds them closed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
NAMES = {"meadow-server.service": "meadow-server.service", "meadow-agent@.service": "meadow-agent@site.service"}  # fmt: skip
EXPOSURE_MAX = 2.9
"""Of 10; systemd calls a service below 3 well protected."""

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed"
)


def analyzed(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze."""
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, check=False, text=True, timeout=60
    )


def laid_out(name: str, folder: Path) -> Path:
    """Write a unit with a program that is there; `verify` looks for it."""
    text = (UNITS / name).read_text().replace("/opt/meadow/bin/meadow", sys.executable)
    assert sys.executable in text
    target = folder / NAMES[name]
    target.write_text(text)
    return target


@pytest.mark.parametrize("name", NAMES)
def test_unit(name: str, tmp_path: Path) -> None:
    """No unknown key and no warning; exposure below 3, also with devices of a GPU."""
    unit = laid_out(name, tmp_path)
    verified = analyzed("verify", "--man=no", str(unit))
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    if name.startswith("meadow-agent"):
        unit.write_text(unit.read_text() + (UNITS / "gpu.conf").read_text())
        assert analyzed("verify", "--man=no", str(unit)).returncode == 0
    threshold = f"--threshold={EXPOSURE_MAX * 10:.0f}"
    found = analyzed("security", "--offline=true", "--no-pager", threshold, str(unit))
    assert found.returncode == 0, found.stdout[-300:]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_unit_starts(name: str) -> None:
    """The command is one of Meadow's, with the folder that the unit may write."""
    lines = dict(
        line.split("=", 1) for line in (UNITS / name).read_text().splitlines() if line[:1].isupper() and "=" in line
    )  # fmt: skip
    program, *arguments = lines["ExecStart"].split()
    assert program == "/opt/meadow/bin/meadow"
    assert arguments[:3] in (["server", "start", "--dir"], ["client", "start", "--dir"])
    assert arguments[3].startswith(f"/var/lib/{lines['StateDirectory']}/")
    assert lines["User"] == lines["StateDirectory"]
