"""How many tiny clients a second are trained when there are very many of them.

10,000 clients with 5 to 50 of scikit-learn's digits each, 1,000 drawn a round, an MLP 64-64-10,
batches of 10, one epoch, SGD 0.1. pfl-research and Flower do the same work in the same run.

    python benchmarks/simulation_scale.py [--repeats 3] [--skip-flower]
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from harness.peers import measure
from harness.report import report
from harness.simulations import simulate

COHORT = 1000


def main() -> None:
    """Run everybody in turns, and compare medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-flower", action="store_true")
    options = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {"meadow": [], "pfl": [], "pfl, 2 processes": []}
    for _ in range(options.repeats):
        results["meadow"].append(simulate("simulation_scale"))
        results["pfl"].append(measure("pfl", "pfl_scale.py", "--processes", "1"))
        results["pfl, 2 processes"].append(measure("pfl", "pfl_scale.py", "--processes", "2"))
    if not options.skip_flower:
        results["flower"] = [measure("flower", "flower_scale.py")]
    rows = [
        {
            "who": name,
            "clients a second": COHORT / median(s for run in runs for s in run["round_s"]),
            "round ms": median(s for run in runs for s in run["round_s"]) * 1e3,
            "first round s": median(run["first_round_s"] for run in runs),
            "peak MB": max(run["peak_rss_mb"] for run in runs),
        }
        for name, runs in results.items()
    ]
    rates = {str(row["who"]): float(row["clients a second"]) for row in rows}
    figures: dict[str, float | int] = {
        "clients_per_s": round(rates["meadow"]),
        "peak_rss_mb": round(float(rows[0]["peak MB"])),
        "first_round_s": round(float(rows[0]["first round s"]), 2),
        "speedup_vs_pfl": round(rates["meadow"] / rates["pfl"], 1),
        "speedup_vs_pfl_2_processes": round(rates["meadow"] / rates["pfl, 2 processes"], 1),
    }
    if "flower" in rates:
        figures["speedup_vs_flower"] = round(rates["meadow"] / rates["flower"])
    report("simulation_scale", rows, figures)


if __name__ == "__main__":
    main()
