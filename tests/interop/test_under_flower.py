"""The same apps under Flower itself, on loopback: its simulation, and a deployed federation.

Flower asks its maker for newer versions, reports use and installs what apps need; all of that is
switched off, so these tests need no network.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from free_ports import free_port

from meadow.simulations.run import simulate
from meadow.transport.tensors import TensorFile

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parent.parent.parent
PLAIN_APP = ROOT / "examples" / "plain_flower"
MEADOW_APP = Path(__file__).parent / "meadow_app"
CLIENTS = 2
PATIENCE_S = 180.0
PLAIN_SETTINGS = {"num-server-rounds": "1", "fraction-evaluate": "0.0"}
MODEL_BYTES_MAX = 1 << 20
QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Flower:
    """A SuperLink, what was started with it, and the runs that it is given."""

    def __init__(self, folder: Path, ray_folder: str) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self.run_folder = folder / "run"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(folder / "home"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "RAY_TMPDIR": ray_folder,
            "RUN_FOLDER": str(self.run_folder),
        }
        connection = f'[superlink]\n[superlink.test]\naddress = "{self.address}"\ninsecure = true\n'
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(connection)

    def start_superlink(self, *options: str) -> None:
        """Start the SuperLink and wait until it answers."""
        host, port = self.address.split(":")
        self._start("flower-superlink", "--insecure", "--host", host, "--port", port, *options)
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s and self._processes[0].poll() is None:
            with (
                contextlib.suppress(urllib.error.URLError, ConnectionError),
                urllib.request.urlopen(f"http://{self.address}/health", timeout=5),
            ):
                return
            time.sleep(0.05)
        raise AssertionError(f"the SuperLink does not answer: {self._log()}")

    def start_supernodes(self) -> None:
        """Start the SuperNodes; an app waits for them."""
        for index in range(CLIENTS):
            place = f"partition-id={index} num-partitions={CLIENTS}"
            own = ("--host", "127.0.0.1", "--port", str(free_port()), "--node-config", place)
            self._start("flower-supernode", "--insecure", "--superlink", self.address, *own)

    def run(self, app: Path, *options: str) -> str:
        """Submit an app with `flwr run`, wait until it is over, and return what it printed."""
        command = [_tool("flwr"), "run", str(app), "test", "--stream", *options]
        done = subprocess.run(
            command,
            env=self._environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return f"{done.stdout}\n{self._log()}"

    def stop(self) -> None:
        """End every process that was started here, and what those have started."""
        started = [psutil.Process(process.pid) for process in self._processes]
        family = [child for parent in started for child in parent.children(recursive=True)]
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def _start(self, name: str, *arguments: str) -> None:
        log = self.folder / f"{len(self._processes)}-{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [_tool(name), *arguments],
                env=self._environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._processes.append(process)

    def _log(self) -> str:
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {f.name}\n{f.read_text(errors='replace')[-3000:]}" for f in files)


def _tool(name: str) -> str:
    """Return one of Flower's commands, from where this Python has its own."""
    return str(Path(sys.executable).parent / name)


@contextlib.contextmanager
def flower(folder: Path) -> Iterator[Flower]:
    """Flower's processes, ended in any case."""
    ray_folder = tempfile.mkdtemp(prefix="ray-")  # a socket's path has few characters
    started = Flower(folder, ray_folder)
    try:
        yield started
    finally:
        started.stop()
        shutil.rmtree(ray_folder, ignore_errors=True)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """A SuperLink and two SuperNodes."""
    with flower(tmp_path_factory.mktemp("deployment")) as started:
        started.start_superlink()
        started.start_supernodes()
        yield started


@pytest.fixture
def simulation(tmp_path: Path) -> Iterator[Flower]:
    """A SuperLink that simulates the SuperNodes, with Ray."""
    if find_spec("ray") is None:
        pytest.skip("Flower simulates with Ray, which is not installed: meadow-fl[simulation]")
    with flower(tmp_path) as started:
        started.start_superlink("--simulation")
        yield started


def assert_same_run(expected: Path, actual: Path, printed: str) -> None:
    """Two run folders hold the same rounds and the same model, within float32's rounding.

    The cohort's order, and so the order of a sum, follows Flower's node ids, which are random.
    """
    assert (actual / "metrics.jsonl").exists(), printed
    mine, theirs = (_rows(folder) for folder in (expected, actual))
    assert len(mine) == len(theirs) == 2, printed
    for row, other in zip(mine, theirs, strict=True):
        for key in ("round", "clients", "failures"):
            assert row[key] == other[key]
        for key in ("train", "evaluate", "server"):
            assert other[key] == pytest.approx(row[key], rel=1e-5)
    model, same = (_model(folder) for folder in (expected, actual))
    assert list(model) == list(same) == ["weight", "bias"]
    for name, values in model.items():
        assert same[name] == pytest.approx(values, rel=1e-5)


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _model(folder: Path) -> dict[str, list[float]]:
    file = TensorFile.open(folder / "model.safetensors", size_max=MODEL_BYTES_MAX)
    return {name: tensor.numpy().ravel().tolist() for name, tensor in file.tensors.items()}


def test_flower_deploys_a_meadow_app(deployment: Flower, tmp_path: Path) -> None:
    """`flwr run` with a Task's apps on SuperNodes learns what `meadow simulate` learns."""
    assert (
        simulate(MEADOW_APP, out=tmp_path / "simulated", executor="sequential")["status"]
        == "finished"
    )
    printed = deployment.run(MEADOW_APP)
    assert_same_run(tmp_path / "simulated", deployment.run_folder, printed)


def test_a_plain_app_is_the_same_on_both(deployment: Flower, tmp_path: Path) -> None:
    """An app that knows nothing of Meadow gives the same numbers on SuperNodes and on Meadow."""
    files = {"flower": tmp_path / "flower.json", "meadow": tmp_path / "meadow.json"}
    overrides = [f"{key}={value}" for key, value in PLAIN_SETTINGS.items()]
    simulate(
        PLAIN_APP,
        clients=CLIENTS,
        out=tmp_path / "simulated",
        overrides=[*overrides, f'result-file="{files["meadow"]}"'],
    )
    expected = json.loads(files["meadow"].read_text())
    settings = " ".join([*overrides, f'result-file="{files["flower"]}"'])
    printed = deployment.run(PLAIN_APP, "--run-config", settings)
    assert files["flower"].exists(), printed
    actual = json.loads(files["flower"].read_text())
    assert actual.keys() == expected.keys()
    assert actual["rounds-seen"] == expected["rounds-seen"] == [1] * CLIENTS
    for key in ("train", "evaluate", "server"):
        assert actual[key].keys() == expected[key].keys()
        for number, metrics in expected[key].items():
            assert actual[key][number] == pytest.approx(metrics, rel=1e-6)


def test_flower_simulates_a_meadow_app(simulation: Flower, tmp_path: Path) -> None:
    """`flwr run` with a Task's apps in Flower's simulation learns what Meadow's own learns."""
    assert (
        simulate(MEADOW_APP, out=tmp_path / "simulated", executor="sequential")["status"]
        == "finished"
    )
    size = f"num-supernodes={CLIENTS} client-resources-num-cpus=1 init-args-num-cpus={CLIENTS}"
    printed = simulation.run(MEADOW_APP, "--federation-config", size)
    assert_same_run(tmp_path / "simulated", simulation.run_folder, printed)
