"""The server's peak memory with 4, 20 and 50 agents of a 100 MB model each.

Peak resident memory (VmHWM, files that are mapped included) of the daemon and of the run worker,
less that of the same two processes in a run of a tiny model, in units of the model. It must not
grow with the number of agents: `growth_4_to_50`, and stay below 4 models.

For comparison, with two agents of 100 MB NVFlare 2.9's server job peaked at 1.6 GB, Flower 1.41's
at 1.0 GB + 1.1 GB.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness.agents import enroll_many
from harness.fleet import many_agents, process_of, run_to_end, status_kb
from harness.report import report

from meadow.cli.demo import DemoFederation

APP = Path(__file__).parent / "apps" / "constant"
AGENTS = (4, 20, 50)
MODEL_MB = 100
ROUNDS = 3


def main() -> None:
    """Measure and print."""
    idle = _peaks(AGENTS[0], model_mb=0)
    table, models = [], {}
    for agents in AGENTS:
        peaks = _peaks(agents, model_mb=MODEL_MB)
        models[agents] = [
            (peak - rest) / 1000 / MODEL_MB for peak, rest in zip(peaks, idle, strict=True)
        ]
        table.append(
            {
                "agents": agents,
                "daemon MB": peaks[0] / 1000,
                "worker MB": peaks[1] / 1000,
                "daemon, models": models[agents][0],
                "worker, models": models[agents][1],
            }
        )
    table.append({"agents": "tiny model", "daemon MB": idle[0] / 1000, "worker MB": idle[1] / 1000})
    first, last = table[0], table[len(AGENTS) - 1]
    figures = {
        "daemon_peak_models": round(models[AGENTS[-1]][0], 3),
        "worker_peak_models": round(models[AGENTS[-1]][1], 3),
        "growth_4_to_50": round(
            max(last[f"{who} MB"] / first[f"{who} MB"] for who in ("daemon", "worker")), 3
        ),
        "daemon_growth_4_to_50": round(last["daemon MB"] / first["daemon MB"], 3),
        "worker_growth_4_to_50": round(last["worker MB"] / first["worker MB"], 3),
    }
    report("server_memory", table, figures)


def _peaks(agents: int, *, model_mb: int) -> tuple[int, int]:
    """Return the peak memory of daemon and worker in kB."""
    os.environ["MODEL_MB"] = str(model_mb)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with DemoFederation(folder, APP) as federation:
            federation.start_server()
            daemon = process_of("server", "start", str(federation.server_dir))
            enroll_many(federation.server_dir, folder / "agents", APP, agents)
            worker_kb = 0

            def look(kind: str) -> None:
                nonlocal worker_kb
                pid = process_of("meadow.server.worker.worker")
                worker_kb = max(worker_kb, status_kb(pid, "VmHWM"))

            with many_agents(folder / "agents", agents):
                settings = [f"run.rounds={ROUNDS}", f"run.min_clients={agents}"]
                settings += [f"simulation.clients={agents}"]
                run_to_end(federation.server_dir, APP, *settings, on_event=look)
                return status_kb(daemon, "VmHWM"), worker_kb


if __name__ == "__main__":
    main()
