"""A Ray cluster of several nodes, each with a raylet of its own, on this machine: one joins a run that
has begun, and is killed in the middle of a round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WAIT_S = 120.0
HOST = "127.0.0.1"

TASK = """
import os, time
from pathlib import Path
import meadow, torch
from torch import nn

RUNS = Path(os.environ["NODES_TEST"])

def wait(done):
    until_s = time.monotonic() + 120
    while not done() and time.monotonic() < until_s:
        time.sleep(0.05)

def load(site):
    (RUNS / f"raylet-{os.getppid()}").touch()
    first = RUNS / "first"
    if first.exists():
        if os.getppid() == int(first.read_text()):
            wait((RUNS / "begun").exists)
        elif (RUNS / "hold").exists():
            (RUNS / "begun").touch()
            wait(lambda: False)
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(20 + 7 * site.index, 4, generator=generator)
    return meadow.ClientData(train=(inputs, (inputs.sum(dim=1) > 0).long()))

task = meadow.Task(
    model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2)),
    loss=meadow.cross_entropy,
    client_data=load,
)
"""
SETTINGS = """
[run]
rounds = 2
seed = 3
min_clients = 1

[training]
batch_size = 10
learning_rate = 0.1

[evaluation]
every = 0

[simulation]
clients = 9
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an app, and beside it that of the files by which test and clients meet."""
    (tmp_path / "app").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "app/task.py").write_text(TASK)
    (tmp_path / "app/meadow.toml").write_text(SETTINGS)
    monkeypatch.setenv("NODES_TEST", str(tmp_path / "runs"))
    return tmp_path


@pytest.fixture
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster whose head has no CPU, or a skipped test where there is no Ray."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # otherwise Ray replaces 127.0.0.1 by an address that others can reach
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args=node(0), shutdown_at_exit=False)
    yield made
    made.shutdown()


def node(cpus: int) -> dict[str, Any]:
    return {
        "num_cpus": cpus,
        "object_store_memory": 128 << 20,
        "include_dashboard": False,
        "node_ip_address": HOST,
    }


def raylet_of(added: Any) -> int:
    return int(added.all_processes["raylet"][0].process.pid)


def run(folder: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "meadow", "simulate", str(folder / "app")]
    command += ["--out", str(folder / name), "--format", "json", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})


def until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not happened():
        assert process.poll() is None and time.monotonic() < end_s
        time.sleep(0.05)


def test_clients_run_where_their_data_are(folder: Path, cluster: Any) -> None:
    """On nodes with the resource that is named, with a worker for each CPU of those alone; where no node
    has it, the run does not begin, and says what to do."""
    cluster.add_node(**node(1))
    having = cluster.add_node(**node(1), resources={"images": 1})
    arguments = ["--executor", "ray", "--set", f"simulation.address={cluster.address}"]
    spread = run(folder, "spread", *arguments, "--set", "simulation.node_resource=images")
    spread.communicate(timeout=WAIT_S)
    seen = {path.name for path in (folder / "runs").glob("raylet-*")}
    lacking = run(folder, "lacking", *arguments, "--set", "simulation.node_resource=scans")
    output, _ = lacking.communicate(timeout=WAIT_S)
    assert spread.returncode == 0 and seen == {f"raylet-{raylet_of(having)}"}
    assert lacking.returncode != 0
    assert "none of the Ray cluster's 3 nodes has this resource" in output
    assert "ray start --resources=" in output


def test_a_node_joins_and_is_killed(folder: Path, cluster: Any) -> None:
    """The second worker starts when there is a node for it; when that node is killed while it runs
    clients, these run again on the other: the model is the sequential one to the bit."""
    alone = run(folder, "alone", "--executor", "sequential")
    alone.communicate(timeout=WAIT_S)
    runs = folder / "runs"
    first = cluster.add_node(**node(1))
    (runs / "first").write_text(str(raylet_of(first)))
    (runs / "hold").touch()
    spread = run(
        folder,
        "spread",
        *("--executor", "ray", "--set", "simulation.workers=2"),
        *("--set", f"simulation.address={cluster.address}"),
    )
    try:
        second = cluster.add_node(**node(1))
        until((runs / "begun").exists, spread)
        (runs / "hold").unlink()
        cluster.remove_node(second, allow_graceful=False)
        output, _ = spread.communicate(timeout=WAIT_S)
    finally:
        spread.kill()
    events = [json.loads(line) for line in output.splitlines()]
    assert spread.returncode == alone.returncode == 0
    lost = [event for event in events if event["event"] == "worker_lost"]
    assert len(lost) == 1 and lost[0]["clients"]
    models = [(folder / name / "model.safetensors").read_bytes() for name in ("alone", "spread")]
    assert models[0] == models[1]
