"""How long a round of many tiny clients takes: scikit-learn's digits, an MLP 64-64-10.

100 clients (and 1,000), all of them in every round, batches of 10, one epoch, SGD 0.1, 20 rounds.
pfl-research, Flower and FedJAX do the same work in the same run, each in its best setting;
"pfl, 1 process" is pfl as it comes. Meadow's rounds are timed from outside, with strategy, metrics
and checkpoints. Times count only where the accuracy after 20 rounds is the same.

    python benchmarks/simulation_digits.py [--repeats 3] [--skip-flower]
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from harness.peers import measure
from harness.report import report
from harness.simulations import simulate

ROUNDS = 20
TOLERANCE = 0.01
"""How far the accuracies may be apart: the order of the batches moves them by as much."""

PEERS: dict[str, tuple[str, ...]] = {
    "fedjax": ("fedjax", "fedjax_digits.py"),
    "pfl, 1 process": ("pfl", "pfl_digits.py", "--processes", "1"),
    "pfl, 2 processes": ("pfl", "pfl_digits.py", "--processes", "2"),
    "flower": ("flower", "flower_digits.py"),
}


def main() -> None:
    """Run everybody in turns, and compare medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-flower", action="store_true")
    options = parser.parse_args()
    peers = {k: v for k, v in PEERS.items() if not (options.skip_flower and k == "flower")}
    rows: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    for clients in (100, 1000):
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in ("meadow", *peers)}
        ours = ["--clients", str(clients), "--rounds", str(ROUNDS)]
        ours += ["--set", f"evaluation.every={ROUNDS}"]
        for repeat in range(options.repeats):
            for name, (peer, program, *arguments) in peers.items():
                if name == "flower" and repeat:
                    continue  # a run of 20 rounds is enough, and takes minutes
                # 20 of Meadow's rounds are over in 0.1 s: they are timed beside each peer's
                results["meadow"].append(simulate("simulation_digits", *ours))
                rounds = "5" if name == "flower" and clients == 1000 else str(ROUNDS)
                said = ["--clients", str(clients), "--rounds", rounds]
                results[name].append(measure(peer, program, *said, *arguments))
        rows += [_row(name, clients, runs) for name, runs in results.items() if runs]
        figures |= _figures(clients, {row["who"]: row for row in rows if row["clients"] == clients})
    report("simulation_digits", rows, figures)


def _row(name: str, clients: int, runs: list[dict[str, Any]]) -> dict[str, Any]:
    accuracy = runs[-1]["accuracy"]
    last = list(accuracy.values())[-1] if isinstance(accuracy, dict) else accuracy[-1]
    return {
        "who": name,
        "clients": clients,
        "round ms": median(s for run in runs for s in run["round_s"]) * 1e3,
        "first round s": median(run["first_round_s"] for run in runs),
        "accuracy": last,
        "peak MB": max(run["peak_rss_mb"] for run in runs),
    }


def _figures(clients: int, rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    ours = rows["meadow"]
    suffix = "" if clients == 100 else f"_{clients}"
    figures = {f"round_ms{suffix}": round(ours["round ms"], 2)}
    for name, row in rows.items():
        complete = not (name == "flower" and clients == 1000)
        if complete and abs(row["accuracy"] - ours["accuracy"]) > TOLERANCE:
            raise SystemExit(f"{name} ends at {row['accuracy']}, meadow at {ours['accuracy']}")
        if name != "meadow":
            key = name.replace(", 1 process", "").replace(", 2 processes", "_2_processes")
            figures[f"speedup_vs_{key}{suffix}"] = round(row["round ms"] / ours["round ms"], 1)
    if clients == 100:
        figures["first_round_s"] = round(ours["first round s"], 2)
        figures["peak_rss_mb"] = round(ours["peak MB"])
    return figures


if __name__ == "__main__":
    main()
