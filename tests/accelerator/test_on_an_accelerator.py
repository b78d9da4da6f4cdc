"""What runs on a GPU runs on any accelerator: suites on a strict one, of two devices on the CPU.

torch keeps an accelerator that it has loaded, so each suite is a process of its own, in which torch
finds the accelerator as it finds a vendor's plugin. Nothing in Meadow knows of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from .build import MODULE, SOURCE

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = HERE / "build.py"
TWO_DEVICES = "tests/training/parallel/test_plan.py::test_two_gpus_make_one_update"
SIMULATION = str(HERE / "simulation_suite.py")
SUITES = {
    "a client": [
        *(str(HERE / f"{suite}_suite.py") for suite in ("device", "training")),
        f"{SIMULATION}::test_other_work",
    ],
    "two ranks": [f"{TWO_DEVICES}[{form}]" for form in ("ddp", "pipeline")],
    "a federation": [str(HERE.parent / "federation" / "accelerator_suite.py")],
}


@pytest.fixture(scope="session")
def accelerator() -> Path:
    """Return the folder of the strict accelerator, built once for this torch and this source."""
    if shutil.which(cpp_extension.get_cxx_compiler()) is None:
        pytest.skip("there is no C++ compiler to build the strict accelerator with")
    if not cpp_extension.is_ninja_available():
        pytest.skip("there is no ninja to build the strict accelerator with")
    digest = hashlib.sha256(f"{torch.__version__} {sys.version}".encode())
    for file in (SOURCE, MODULE, BUILD):
        digest.update(file.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meadow-tests"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"strict-accelerator-{digest.hexdigest()[:16]}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others may want it at the same time
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            command = [sys.executable, str(BUILD), str(unfinished)]
            built = subprocess.run(command, capture_output=True, text=True, check=False)
            assert built.returncode == 0, built.stdout + built.stderr
            unfinished.rename(folder)
    return folder


def run(accelerator: Path, tests: list[str], **environment: str) -> None:
    """Run tests in a process that has the accelerator; none may fail or be skipped."""
    path = os.pathsep.join([str(accelerator), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout


@pytest.mark.parametrize("suite", SUITES)
def test_it_runs_on_an_accelerator(accelerator: Path, suite: str) -> None:
    """Every test of a suite passes."""
    run(accelerator, SUITES[suite])


def test_simulations_need_no_float64(accelerator: Path) -> None:
    """Every algorithm and executor does as well on a device without float64, as MPS is."""
    run(accelerator, [SIMULATION, "-k", "not other_work"], STRICT_FLOAT64="0")
