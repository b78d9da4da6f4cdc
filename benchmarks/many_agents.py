"""5,000 agents at one daemon: connecting, a round of all, and all of them again after kill -9.

The agents are many in a process, each with a certificate and a TLS connection of its own. They speak an agent's
protocol, and keep nothing on disk (harness/thin_agents.py); their trainer adds a number to a model of
250 params. Measured of the daemon: the resident
memory that a connected agent adds, and its CPU time of a round and of connecting, by agent; of the
whole: how long a round takes with the agents on the same cores, and how long all of them need to
be back after the daemon was killed in the middle of a round. The same with a tenth of the agents
shows what grows faster than their number.

    python benchmarks/many_agents.py --agents 5000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from harness.agents import enroll_many
from harness.fleet import many_agents, run_to_end, status_kb
from harness.report import report

from meadow.errors import MeadowError
from meadow.server.daemon.server_dir import ServerFolder
from meadow.server.remote.connection import admin_stub
from meadow.transport import fleet_pb2 as pb

APP = Path(__file__).parent / "apps" / "constant"
AGENTS, FEWER = 5000, 10
AGENTS_A_PROCESS = 1250
ENROLLING = 2
ROUNDS = 4
WAIT_S = 900.0
SILENCE_S = 20.0
SETTLED_S = 5.0
KILLED_AFTER_S = 2.0
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    os.environ["MODEL_MB"] = "0"
    os.environ["OMP_NUM_THREADS"] = "1"
    counts = [max(1, given.agents // FEWER), given.agents]
    found = [_measured(count, given.rounds) for count in counts]
    few, many = found
    figures = {
        "agents": given.agents,
        **{name: round(value, 3) for name, value in many.items()},
        "cpu_growth": round(many["cpu_ms_per_agent"] / few["cpu_ms_per_agent"], 3),
    }
    table = [
        {"agents": count, **{name: round(value, 2) for name, value in each.items()}}
        for count, each in zip(counts, found, strict=True)
    ]
    report("many_agents", table, figures)


def _measured(count: int, rounds: int) -> Mapping[str, float]:
    """Return what `count` agents cost."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        server = stack.enter_context(_Server(folder / "server"))
        begin_s = time.monotonic()
        _enroll(server.folder, folder / "agents", count)
        enroll_s = time.monotonic() - begin_s
        before_kb, before_s, begin_s = server.rss_kb(), server.cpu_s(), time.monotonic()
        for first in range(0, count, AGENTS_A_PROCESS):
            here = min(AGENTS_A_PROCESS, count - first)
            stack.enter_context(many_agents(folder / "agents", here, first=first, thin=True))
        server.wait_for(count)
        connect_s, connect_cpu_s = time.monotonic() - begin_s, server.cpu_s() - before_s
        time.sleep(SETTLED_S)
        quiet_s = server.cpu_s()
        time.sleep(SILENCE_S)
        idle_share = (server.cpu_s() - quiet_s) / SILENCE_S
        rss_kb = server.rss_kb() - before_kb
        seen: list[tuple[float, float]] = []
        server.run(count, rounds, lambda: seen.append((server.cpu_s(), time.monotonic())))
        between = len(seen) - 1
        back_s = server.run_killed(count)
        return {
            "enroll_s": enroll_s,
            "connect_s": connect_s,
            "connect_cpu_ms_per_agent": 1000 * connect_cpu_s / count,
            "rss_kb_per_agent": rss_kb / count,
            "idle_cpu_share": idle_share,
            "round_s": (seen[-1][1] - seen[0][1]) / between,
            "cpu_ms_per_agent": 1000 * (seen[-1][0] - seen[0][0]) / between / count,
            "reconnect_s": back_s,
        }


class _Server:
    """A daemon at ports that stay the same, so that its agents find it again; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ServerFolder.create(folder, host="localhost", now=datetime.now(UTC))
        self._ports: list[str] = []
        self._start()
        found = ServerFolder(folder).listening()
        for name in ("fleet", "enroll"):
            self._ports += [f"--{name}-port", found[name].rpartition(":")[2]]

    def _start(self) -> None:
        ports = self._ports or ["--fleet-port", "0", "--enroll-port", "0"]
        command = [sys.executable, "-m", "meadow", "server", "start", "--dir", str(self.folder)]
        with (self.folder.parent / "server.log").open("ab") as log:
            self._process = subprocess.Popen([*command, *ports], stdout=log, stderr=log)
        self.wait_for(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def cpu_s(self) -> float:
        """CPU time of the daemon, without its run workers."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND

    def rss_kb(self) -> int:
        """The daemon's resident memory now."""
        return status_kb(self._process.pid, "VmRSS")

    def wait_for(self, connected: int) -> None:
        """Wait until the daemon answers and has so many agents."""
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            with suppress(MeadowError), admin_stub(self.folder, None) as stub:
                if stub.Status(pb.Empty(), timeout=20).connected >= connected:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"{connected} were not connected within {WAIT_S:.0f} s")

    def run(self, count: int, rounds: int, at_round: Callable[[], None]) -> None:
        """Run the app over all agents; `at_round` is called after each round."""

        def on_event(kind: str) -> None:
            if kind == "round_committed":
                at_round()

        rows = run_to_end(self.folder, APP, *_settings(count, rounds), on_event=on_event)
        _check(rows, count)

    def run_killed(self, count: int) -> float:
        """Kill the daemon in the middle of a round; return when all its agents were back."""
        back_s: list[float] = []

        def kill() -> None:
            if back_s:
                return
            time.sleep(KILLED_AFTER_S)
            self._process.kill()
            self._process.wait()
            begin_s = time.monotonic()
            self._start()
            self.wait_for(count)
            back_s.append(time.monotonic() - begin_s)

        with suppress(MeadowError):  # the connection that watches the run ends with the daemon
            self.run(count, 3, kill)
        run = max((self.folder / "runs").iterdir(), key=lambda path: int(path.name))
        end_s = time.monotonic() + WAIT_S
        with admin_stub(self.folder, None) as stub:
            while (now := stub.ShowRun(pb.RunId(id=int(run.name))).run).status != "finished":
                if now.status == "failed" or time.monotonic() > end_s:
                    raise RuntimeError(f"the run is {now.status}: {now.cause}")
                time.sleep(0.5)
        _check(
            [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()], count
        )
        return back_s[0]


def _settings(count: int, rounds: int) -> list[str]:
    return [
        f"run.rounds={rounds}",
        f"run.min_clients={count}",
        f"simulation.clients={count}",
        "run.deadline_s=900",
    ]


def _check(rows: Sequence[Mapping[str, Any]], count: int) -> None:
    clients = [row["clients"] for row in rows]
    if any(found != count for found in clients):
        raise RuntimeError(f"rounds of {clients} clients, not {count}")


def _enroll(server_dir: Path, folder: Path, count: int) -> None:
    """Enrol the agents, from several processes."""
    size = -(-count // ENROLLING)
    with ProcessPoolExecutor(ENROLLING) as pool:
        firsts = range(0, count, size)
        parts = [
            pool.submit(enroll_many, server_dir, folder, APP, min(size, count - first), first=first)
            for first in firsts
        ]
        for part in parts:
            part.result()


if __name__ == "__main__":
    main()
