"""What one agent that is 20 times slower costs a fleet, with asynchronous and synchronous rounds.

Six agents take a quarter of a second for an update, over gRPC with mutual TLS; the seventh takes
five seconds. The peer is the fleet without it, in the same run, on the same server: updates a
second after the first few rounds.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from harness.agents import enroll_many
from harness.fleet import many_agents, run_to_end
from harness.report import report

from meadow.cli.demo import DemoFederation

APP = Path(__file__).parent / "apps" / "constant"
FAST, PACE_S, SLOWER = 6, 0.25, 20
WARM_UP_ROUNDS = 5
FEDBUFF = ("rounds.kind=fedbuff", f"rounds.buffer_size={FAST}", "run.rounds=55")
SYNCHRONOUS = ("rounds.kind=synchronous", f"run.rounds={WARM_UP_ROUNDS + 2}")


def main() -> None:
    """Measure and print."""
    os.environ["MODEL_MB"] = "0"
    with tempfile.TemporaryDirectory() as folder, DemoFederation(Path(folder), APP) as federation:
        federation.start_server()
        agents = Path(folder) / "agents"
        enroll_many(federation.server_dir, agents, APP, FAST + 1)
        server = federation.server_dir
        with many_agents(agents, FAST, pace_s=PACE_S):
            alone = throughput(server, FAST, *FEDBUFF)
            waited_alone = throughput(server, FAST, *SYNCHRONOUS)
            with many_agents(agents, 1, first=FAST, pace_s=PACE_S * SLOWER):
                beside = throughput(server, FAST + 1, *FEDBUFF)
                stale = slow_updates(server, run=3)
                waited_beside = throughput(server, FAST + 1, *SYNCHRONOUS)
    figures = {
        "updates_per_s_without": round(alone, 2),
        "updates_per_s_with": round(beside, 2),
        "ratio": round(beside / alone, 3),
        "slow_updates": stale,
        "synchronous_ratio": round(waited_beside / waited_alone, 3),
    }
    table = [
        {"rounds": "fedbuff", "without": alone, "with the slow agent": beside},
        {"rounds": "synchronous", "without": waited_alone, "with the slow agent": waited_beside},
    ]
    report("asynchronous", table, figures)


def throughput(server: Path, clients: int, *settings: str) -> float:
    """Return the updates a second of a run that begins when so many clients are there."""
    needed = (f"run.min_clients={clients}", f"simulation.clients={clients}", "evaluation.every=0")
    rows = run_to_end(server, APP, *settings, *needed)[WARM_UP_ROUNDS:]
    return float(sum(row["clients"] for row in rows) / sum(row["duration_s"] for row in rows))


def slow_updates(server: Path, *, run: int) -> int:
    """Return how many of a run's updates were the slow agent's: it has the largest id."""
    lines = (server / "runs" / str(run) / "clients.jsonl").read_text().splitlines()
    return sum(json.loads(line)["clients"].count(FAST + 1) for line in lines)


if __name__ == "__main__":
    main()
