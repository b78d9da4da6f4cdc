"""A site of two machines in a federation: an agent, its server, and what the owner of the second one types."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from meadow.client.tools.status import status_of
from meadow.transport.tensors import TensorFile

from ...federation.processes import meadow
from .conftest import Machines, wait_for

pytestmark = pytest.mark.fleet

DEVICE = """
[device]
device = "cpu"
parallel = "ddp"
processes = 2
hosts = 2
hosts_wait_s = 5
"""
SETTINGS = ("run.rounds=3", "run.min_clients=1", "simulation.clients=1", "training.batch_size=8")
ROUNDS = [(1, 1, 0), (2, 1, 0), (3, 1, 0)]


def there(machines: Machines, *arguments: object) -> dict[str, Any]:
    """Run a command that dials the server, on the machine that leads; returns its last line of JSON."""
    netns = ("ip", "netns", "exec", machines.names[0])
    command = (*netns, sys.executable, "-m", "meadow", *map(str, arguments), "--format", "json")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    lines = done.stdout.splitlines()
    return dict(json.loads(lines[-1])) if lines else {}


def summary(folder: Path) -> dict[str, Any]:
    """Wait for the end of a run; returns its summary."""
    file = folder / "summary.json"
    wait_for(file.exists, "end of the run")
    return dict(json.loads(file.read_text()))


def rounds(folder: Path) -> list[tuple[int, int, int]]:
    """Return the rounds of a run: number, clients, failures."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["round"], row["clients"], row["failures"]) for row in rows]


def model(folder: Path) -> dict[str, torch.Tensor]:
    """Return the model of a run."""
    tensors = TensorFile.open(folder / "model.safetensors", size_max=1 << 30).tensors
    return {name: torch.tensor(tensor.numpy()) for name, tensor in tensors.items()}


def test_a_site_of_two_machines(machines: Machines) -> None:
    """Typed as the documentation has it: the second machine is invited, joins, trains, is killed in the
    middle of a round and comes back; every round is committed, the status says who is there, and the
    model is that of a simulation in one process."""
    folder = machines.folder
    server, site, app = folder / "server", folder / "site", folder / "leads" / "app"

    def hosts() -> str:
        return status_of(site, now_s=time.time()).hosts

    command = (sys.executable, "-m", "meadow")
    meadow("server", "init", "--dir", str(server), "--host", "localhost")
    machines.start(0, *command, "server", "start", "--dir", str(server), log="server.log")
    wait_for(lambda: "listening" in machines.log("server.log"), "server")
    invitation = folder / "site-a.invitation"
    there(machines, "server", "invite", "site-a", "--dir", server, "--out", invitation)
    there(machines, "client", "join", invitation, "--dir", site)
    told = (site / "client.toml").read_text().replace("[apps]\n", f'[apps]\napp = "{app}"\n')
    (site / "client.toml").write_text(told.replace("\n[device]\n", DEVICE))
    shown = folder / "host-b.pass"
    meadow("client", "rank", "--invite", "host-b", "--dir", str(site), "--out", str(shown))
    machines.join(shown)
    wait_for(lambda: "nobody leads there now" in machines.log("joins.log"), "machine that dials")
    assert "no training process" in hosts() and "invited: host-b" in hosts()
    machines.start(0, *command, "client", "start", "--dir", str(site), log="agent.log")
    wait_for(lambda: "host-b (2 ranks" in hosts(), "machine that has joined")

    machines.say("joins", "stop-2", 3)  # a rank that stops holds a round in its middle
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    submitted = ("run", "submit", app, "--dir", server, *options)
    run = server / "runs" / str(there(machines, *submitted)["run"])
    wait_for(lambda: not (folder / "joins" / "stop-2").exists(), "round over two machines")
    assert "2 of 2: this one, host-b (2 ranks, trains)" in hosts()
    machines.end_all(1)
    assert summary(run)["status"] == "finished"
    assert rounds(run) == ROUNDS
    assert "1 of 2: this one" in hosts()

    machines.join(shown)
    wait_for(lambda: "waits" in hosts(), "machine come back")
    before = machines.passes("joins", 2)
    again = server / "runs" / str(there(machines, *submitted)["run"])
    assert summary(again)["status"] == "finished"
    assert rounds(again) == ROUNDS
    assert machines.passes("joins", 2) - before == 3 * 7, "it trained 53 examples by 8, thrice"
    assert "trains" in hosts()

    plain = folder / "plain"
    meadow("simulate", str(app), "--executor", "sequential", "--out", str(plain), *options)
    alone = model(plain)
    for each in (run, again):
        made = model(each)
        for name, value in alone.items():
            torch.testing.assert_close(made[name], value, rtol=1e-4, atol=1e-5)
