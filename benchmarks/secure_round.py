"""What a secure round costs beside a plain one: daemon, worker and 8 agents over mutual TLS.

The app is `examples/mnist`: a CNN, one epoch on each agent's own images, a durable checkpoint, and
evaluation on the agents and on the server's held-out images. Plain and secure runs of the same
seed take turns in one federation; the first rounds of each run, when training processes start,
are left out. A secure round is two sessions, one for training in five exchanges and one for
evaluation in four.

    python benchmarks/secure_round.py [--agents 8] [--rounds 14] [--pairs 2] [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from harness.fleet import run_to_end
from harness.report import report

from meadow.cli.demo import DemoFederation

APP = Path(__file__).resolve().parents[1] / "examples" / "mnist"
WARM_UP_ROUNDS = 2
SETTINGS = {"plain": "false", "secure": "true"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", type=int, default=8, help="3 at least")
    parser.add_argument("--rounds", type=int, default=14, help=f"above {WARM_UP_ROUNDS + 1}")
    parser.add_argument("--pairs", type=int, default=2, help="runs of each kind")
    parser.add_argument("--quick", action="store_true", help="small: whether it works at all")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.agents, arguments.rounds, arguments.pairs = 3, 4, 1
    runs = measure(arguments.agents, arguments.rounds, arguments.pairs)
    table = [row_of(kind, rows) for kind, rows in runs.items()]
    plain, secure = table
    figures = {
        "round_ratio": round(secure["median s"] / plain["median s"], 3),
        "plain_round_s": round(plain["median s"], 4),
        "secure_round_s": round(secure["median s"], 4),
        "accuracy_difference": round(100 * (secure["accuracy"] - plain["accuracy"]), 3),
        "plain_accuracy": round(plain["accuracy"], 4),
        "secure_accuracy": round(secure["accuracy"], 4),
        "agents": arguments.agents,
        "rounds": plain["rounds"],
    }
    report("secure_round", table, figures)


def measure(agents: int, rounds: int, pairs: int) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the rows of metrics.jsonl of every run, plain and secure."""
    runs: dict[str, list[list[dict[str, Any]]]] = {kind: [] for kind in SETTINGS}
    with tempfile.TemporaryDirectory() as folder, DemoFederation(Path(folder), APP) as federation:
        federation.start_server()
        for index in range(agents):
            federation.add_client(f"site-{index}")
        for _ in range(pairs):
            for kind, enabled in SETTINGS.items():
                rows = run_to_end(
                    federation.server_dir,
                    APP,
                    f"run.min_clients={agents}",
                    f"simulation.clients={agents}",
                    f"run.rounds={rounds}",
                    f"privacy.secure_aggregation.enabled={enabled}",
                )
                require_everybody(kind, rows, agents)
                runs[kind].append(rows)
    return runs


def require_everybody(kind: str, rows: list[dict[str, Any]], agents: int) -> None:
    """Check that all agents took part in all rounds.

    Raises:
        SystemExit: one did not, so that these rounds are not comparable.
    """
    for row in rows:
        if row["clients"] != agents or row["failures"]:
            raise SystemExit(
                f"round {row['round']} of a {kind} run must have {agents} clients and no failure, "
                f"got {row['clients']} and {row['failures']}; run again on an idle machine"
            )


def row_of(kind: str, runs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return times and final accuracy of all runs of a kind."""
    times_s = [row["duration_s"] for rows in runs for row in rows[WARM_UP_ROUNDS:]]
    return {
        "round": kind,
        "rounds": len(times_s),
        "median s": median(times_s),
        "95th percentile s": quantiles(times_s, n=20, method="inclusive")[-1],
        "accuracy": fmean(rows[-1]["server"]["accuracy"] for rows in runs),
    }


if __name__ == "__main__":
    main()
