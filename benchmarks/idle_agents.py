"""200 agents connected to one daemon: what they cost when nothing happens, and one round of all.

The daemon's CPU time over half a minute of silence, as a share of one core, and how long a round
of a tiny model takes with all of them. And what one agent costs its own machine while nothing happens, before and
after its training process is let go: memory (shared pages by their share, Pss) and CPU seconds an hour.

    python benchmarks/idle_agents.py --only one
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from harness.agents import enroll_many
from harness.fleet import many_agents, process_of, run_to_end
from harness.report import report

from meadow.cli.demo import DemoFederation
from meadow.server.remote.connection import admin_stub
from meadow.transport import fleet_pb2 as pb

APP = Path(__file__).parent / "apps" / "constant"
TRAINED_APP = Path(__file__).parent / "apps" / "digits"
KEPT_WARM_S = 90
ONE_SILENCE_S = 60.0
AGENTS = 200
SILENCE_S = 30.0
ROUNDS = 4
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("many", "one"))
    only = parser.parse_args().only
    table, figures = list[dict[str, object]](), dict[str, float | int]()
    for name, measure in (("many", _many), ("one", _one)):
        if only in (None, name):
            rows, more = measure()
            table, figures = [*table, *rows], figures | more
    report("idle_agents", table, figures)


def _many() -> tuple[list[dict[str, object]], dict[str, float | int]]:
    """Measure the daemon beside many agents."""
    os.environ["MODEL_MB"] = "0"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with DemoFederation(folder, APP) as federation:
            federation.start_server()
            daemon = process_of("server", "start", str(federation.server_dir))
            enroll_many(federation.server_dir, folder / "agents", APP, AGENTS)
            with many_agents(folder / "agents", AGENTS):
                _wait_for_all(federation.server_dir)
                before_s = _cpu_s(daemon)
                time.sleep(SILENCE_S)
                share = (_cpu_s(daemon) - before_s) / SILENCE_S
                settings = [f"run.rounds={ROUNDS}", f"run.min_clients={AGENTS}"]
                settings += [f"simulation.clients={AGENTS}"]
                rows = run_to_end(federation.server_dir, APP, *settings)
    clients = min(row["clients"] for row in rows)
    round_s = min(row["duration_s"] for row in rows)
    figures: dict[str, float | int] = {
        "agents": AGENTS,
        "daemon_cpu_share": round(share, 4),
        "clients_in_round": clients,
        "round_s": round(round_s, 3),
    }
    table: list[dict[str, object]] = [
        {"what": f"daemon's CPU with {AGENTS} idle agents", "value": f"{share:.2%} of a core"},
        {"what": "agents in every round", "value": clients},
        {"what": "a round of all", "value": f"{round_s:.2f} s"},
    ]
    return table, figures


def _one() -> tuple[list[dict[str, object]], dict[str, float | int]]:
    """Measure one agent that has trained a round, before and after its training process is let go."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with DemoFederation(folder, TRAINED_APP) as federation:
            federation.start_server()
            federation.add_client("site-1")
            owners = folder / "clients" / "site-1" / "client.toml"
            text = owners.read_text()
            kept = f"[device]\nkept_warm_s = {KEPT_WARM_S}\n"
            owners.write_text(text.replace("[device]\n", kept))
            settings = ("run.rounds=3", "run.min_clients=1", "simulation.clients=1")
            run_to_end(federation.server_dir, TRAINED_APP, *settings)
            agent = process_of("client", "start", str(owners.parent))
            warm_mb, warm_s = _cost(agent)
            if not _children(agent):
                raise RuntimeError("the training process was let go too early")
            while _children(agent):
                time.sleep(1.0)
            cold_mb, cold_s = _cost(agent)
    table: list[dict[str, object]] = []
    for what, mb, cpu_s in (("", warm_mb, warm_s), (", training process let go", cold_mb, cold_s)):
        table.append({"what": f"an idle agent{what}", "value": f"{mb:.0f} MB"})
        table.append({"what": "its CPU", "value": f"{cpu_s:.1f} s an hour"})
    return table, {
        "warm_mb": round(warm_mb, 1),
        "warm_cpu_s_per_hour": round(warm_s, 2),
        "let_go_mb": round(cold_mb, 1),
        "let_go_cpu_s_per_hour": round(cold_s, 2),
    }


def _cost(agent: int) -> tuple[float, float]:
    """Return the memory of an agent with its processes, in MB, and the seconds of CPU that it takes an hour."""
    processes = [agent, *_children(agent)]
    before_s = sum(map(_cpu_s, processes))
    time.sleep(ONE_SILENCE_S)
    used_s = sum(map(_cpu_s, processes)) - before_s
    return sum(map(_pss_mb, processes)), used_s * 3600 / ONE_SILENCE_S


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def _pss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def _wait_for_all(server_dir: Path) -> None:
    with admin_stub(server_dir, None) as stub:
        while stub.Status(pb.Empty()).connected < AGENTS:
            time.sleep(0.2)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


if __name__ == "__main__":
    main()
