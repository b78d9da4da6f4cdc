"""How long a round of a tiny model takes: daemon, worker and two agents over mutual TLS.

A round is training on both agents (one epoch of scikit-learn's digits, an MLP of 2,000
parameters), aggregation, a durable checkpoint, and evaluation on both agents.

For comparison, the same work on a 2-core machine without a GPU took NVFlare 2.9 2,500 ms a
round, Flower 1.41 9,300 ms, and Flower 1.39, its last release with gRPC, 28,000 ms.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from harness.fleet import run_to_end
from harness.report import report

from meadow.cli.demo import DemoFederation

APP = Path(__file__).parent / "apps" / "digits"
WARM_UP_ROUNDS = 3
CLIENTS = 2


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder, DemoFederation(Path(folder), APP) as federation:
        federation.start_server()
        for index in range(CLIENTS):
            federation.add_client(f"site-{index}")
        rows = run_to_end(federation.server_dir, APP)
    times_ms = [row["duration_s"] * 1000 for row in rows[WARM_UP_ROUNDS:]]
    accuracy = rows[-1]["evaluate"]["accuracy"]
    figures = {
        "median_round_ms": round(statistics.median(times_ms), 2),
        "p95_round_ms": round(statistics.quantiles(times_ms, n=20)[-1], 2),
        "first_round_ms": round(rows[0]["duration_s"] * 1000, 1),
        "rounds": len(rows),
        "final_accuracy": round(accuracy, 4),
    }
    table = [
        {"what": "Meadow, median", "ms": figures["median_round_ms"]},
        {"what": "Meadow, 95th percentile", "ms": figures["p95_round_ms"]},
        {"what": "Meadow, first round (data loaded, caches cold)", "ms": figures["first_round_ms"]},
        {"what": "NVFlare 2.9 (measured earlier)", "ms": 2500},
        {"what": "Flower 1.41 (measured earlier)", "ms": 9300},
    ]
    report("round_latency", table, figures)


if __name__ == "__main__":
    main()
