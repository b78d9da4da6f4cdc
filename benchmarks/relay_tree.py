"""A tree of 10 relays with 20 agents each against one server with the same 200 agents.

What the server above does for a round, of both: CPU time of its daemon and its run worker, and bytes
in both directions. The agents add numbers of their own to a model of 1 MB, after their training of
no time. Then the same tree with one relay killed by kill -9, and started again, in every round: the
model must have the bits of the flat federation's in both.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from harness.agents import enroll_many
from harness.fleet import many_agents, process_of, run_to_end
from harness.report import report

from meadow.cli.demo import DemoFederation
from meadow.config.server_config import server_config_to_toml
from meadow.relay.folder import join
from meadow.server.daemon.server_dir import ServerFolder
from meadow.server.remote.connection import admin_stub
from meadow.transport import fleet_pb2 as pb

APP = Path(__file__).parent / "apps" / "constant"
RELAYS, AGENTS = 10, 20
ROUNDS = 8
MODEL_MB = 1
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
WAIT_S = 300.0
KILLED_AFTER_S = 0.3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--relays", type=int, default=RELAYS)
    parser.add_argument("--agents", type=int, default=AGENTS, help="below each relay")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    os.environ["MODEL_MB"] = str(MODEL_MB)
    os.environ["OMP_NUM_THREADS"] = "1"
    relays, agents, rounds = given.relays, given.agents, given.rounds
    with tempfile.TemporaryDirectory() as name:
        flat = _flat(Path(name) / "flat", relays * agents, rounds)
        tree, killed = _tree(Path(name) / "tree", relays, agents, rounds)
    table = [
        {
            "federation": what,
            "server CPU s a round": round(found["cpu_s"], 3),
            "server MB a round": round(found["bytes"] / 1e6, 1),
            "s a round": round(found["round_s"], 2),
            "same bits": found["model"] == flat["model"],
        }
        for what, found in (
            (f"{relays * agents} agents", flat),
            (f"{relays} relays x {agents} agents", tree),
            ("the same, a relay killed in every round", killed),
        )
    ]
    figures = {
        "relays": relays,
        "agents": relays * agents,
        "server_cpu_share": round(tree["cpu_s"] / flat["cpu_s"], 4),
        "server_bytes_share": round(tree["bytes"] / flat["bytes"], 4),
        "same_bits": tree["model"] == flat["model"] == killed["model"],
        "kills": killed["kills"],
    }
    report("relay_tree", table, figures)


def _flat(folder: Path, agents: int, rounds: int) -> dict[str, object]:
    folder.mkdir()
    with DemoFederation(folder, APP) as federation:
        federation.start_server()
        enroll_many(federation.server_dir, folder / "agents", APP, agents)
        with many_agents(folder / "agents", agents):
            _wait_for(federation.server_dir, agents)
            return _measured(federation.server_dir, agents, rounds)


def _tree(
    folder: Path, relays: int, agents: int, rounds: int
) -> tuple[dict[str, object], dict[str, object]]:
    folder.mkdir()
    with ExitStack() as stack:
        federation = stack.enter_context(DemoFederation(folder, APP))
        federation.start_server()
        started = [
            stack.enter_context(_relay(federation.server_dir, folder / f"relay-{number}"))
            for number in range(relays)
        ]
        for number in range(relays):
            home = folder / f"relay-{number}"
            enroll_many(home, folder / "agents", APP, agents, first=number * agents)
            stack.enter_context(many_agents(folder / "agents", agents, first=number * agents))
            _wait_for(home, agents)
        _wait_for(federation.server_dir, relays)
        time.sleep(2.0)  # the relays have said whom they have
        tree = _measured(federation.server_dir, relays * agents, rounds)
        killers: list[threading.Thread] = []

        def kill_one() -> None:
            """Kill the next relay, somewhere in the round that begins now."""
            relay = started[len(killers) % relays]
            killers.append(threading.Thread(target=relay.kill_and_start))
            killers[-1].start()

        killed = _measured(federation.server_dir, relays * agents, rounds, at_round=kill_one)
        for killer in killers:
            killer.join()
        return tree, {**killed, "kills": len(killers)}


class _Relay:
    """A relay's process."""

    def __init__(self, folder: Path) -> None:
        self._command = [sys.executable, "-m", "meadow", "relay", "start", "--dir", str(folder)]
        self._log = folder / "relay.log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill_and_start(self) -> None:
        """kill -9 in the middle of a round, and a new start."""
        time.sleep(KILLED_AFTER_S)
        self._process.kill()
        self._process.wait()
        self.start()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


@contextmanager
def _relay(server_dir: Path, folder: Path) -> Iterator[_Relay]:
    """A relay that is enrolled at a server, running, at ports of its own."""
    above = ServerFolder(server_dir)
    token, _ = above.invite(folder.name, hours=1, now_s=time.time())
    join(
        folder,
        server=above.listening()["enroll"],
        token=token,
        ca_fingerprint=above.authority.fingerprint,
        host="localhost",
        now=datetime.now(UTC),
    )
    number = int(folder.name.rpartition("-")[2])
    ports = {"fleet_port": 18_000 + 2 * number, "enroll_port": 18_001 + 2 * number}
    config = replace(ServerFolder(folder).config, **ports)
    (folder / "server.toml").write_text(server_config_to_toml(config))
    relay = _Relay(folder)
    try:
        _wait_for(folder, 0)
        yield relay
    finally:
        relay.stop()


def _measured(
    server_dir: Path,
    clients: int,
    rounds: int,
    *,
    at_round: Callable[[], None] = lambda: None,
) -> dict[str, object]:
    """Run the app, and return what a round costs the server: the first one is left out."""
    seen: list[tuple[float, float]] = []
    daemon = process_of("server", "start", str(server_dir))

    def on_event(kind: str) -> None:
        if kind == "round_committed":
            seen.append((sum(map(_cpu_s, [daemon, *_children(daemon)])), time.monotonic()))
            if len(seen) < rounds:
                at_round()

    settings = [f"run.rounds={rounds}", f"run.min_clients={clients}"]
    settings += [f"simulation.clients={clients}", "run.deadline_s=600"]
    rows = run_to_end(server_dir, APP, *settings, on_event=on_event)
    if any(row["clients"] != clients for row in rows):
        raise RuntimeError(f"rounds of {[row['clients'] for row in rows]} clients, not {clients}")
    newest = max((server_dir / "runs").iterdir(), key=lambda path: int(path.name))
    between = len(seen) - 1
    return {
        "cpu_s": (seen[-1][0] - seen[0][0]) / between,
        "round_s": (seen[-1][1] - seen[0][1]) / between,
        "bytes": sum(row["bytes_sent"] + row["bytes_received"] for row in rows[1:]) / between,
        "model": (newest / "model.safetensors").read_bytes(),
    }


def _children(pid: int) -> list[int]:
    """Return the processes that a process has started: a daemon's are its run workers."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def _wait_for(server_dir: Path, connected: int) -> None:
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        if (server_dir / "listening.json").exists():
            with admin_stub(server_dir, None) as stub:
                if stub.Status(pb.Empty()).connected >= connected:
                    return
        time.sleep(0.2)
    raise RuntimeError(f"{server_dir}: {connected} were not connected within {WAIT_S:.0f} s")


if __name__ == "__main__":
    main()
