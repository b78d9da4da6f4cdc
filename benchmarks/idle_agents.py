"""200 agents connected to one daemon: what they cost when nothing happens, and one round of all.

The daemon's CPU time over half a minute of silence, as a share of one core, and how long a round
of a tiny model takes with all of them.
"""

from __future__ import annotations

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
AGENTS = 200
SILENCE_S = 30.0
ROUNDS = 4
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
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
    figures = {
        "agents": AGENTS,
        "daemon_cpu_share": round(share, 4),
        "clients_in_round": clients,
        "round_s": round(round_s, 3),
    }
    table = [
        {"what": f"daemon's CPU with {AGENTS} idle agents", "value": f"{share:.2%} of a core"},
        {"what": "agents in every round", "value": clients},
        {"what": "a round of all", "value": f"{round_s:.2f} s"},
    ]
    report("idle_agents", table, figures)


def _wait_for_all(server_dir: Path) -> None:
    with admin_stub(server_dir, None) as stub:
        while stub.Status(pb.Empty()).connected < AGENTS:
            time.sleep(0.2)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


if __name__ == "__main__":
    main()
