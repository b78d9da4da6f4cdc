"""How close a model that fills a core comes to the machine: the CNN of pfl's CIFAR-10 benchmark.

1.6 M params, 50 clients of 50 random images, all in every round, batches of 10, one epoch, SGD 0.1.
pfl-research does the same work in the same run, in each of the settings that were its best on some
machine. `share_of_matmul` is the network's arithmetic (two operations a multiplication, the
backward pass counted twice, none for the images' gradient) over what square float32 matrix products
do, on as many threads as workers, in the same run.

    python benchmarks/simulation_cnn.py [--repeats 2] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from typing import Any

import torch
from harness.peers import measure
from harness.report import report
from harness.simulations import simulate

IMAGES = 50 * 50
FIRST, SECOND = 30 * 30 * 32 * 27, 28 * 28 * 64 * 288
DENSE = 12_544 * 128 + 128 * 10
OPERATIONS = 2 * IMAGES * (3 * (FIRST + SECOND + DENSE) - FIRST)

PFL = {
    "pfl, 2 processes": ("--processes", "2"),
    "pfl, 2 processes, channels last": ("--processes", "2", "--channels-last"),
    "pfl, 2 threads, channels last": ("--processes", "1", "--threads", "2", "--channels-last"),
}


def main() -> None:
    """Run everybody in turns, and compare medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds = ("--rounds", str(options.rounds + 1))
    results: dict[str, list[dict[str, Any]]] = {"meadow, processes": [], **{k: [] for k in PFL}}
    matmul: list[float] = []
    for _ in range(options.repeats):
        matmul.append(_matmul_per_s())
        results["meadow, processes"].append(simulate("simulation_cnn", *rounds))
        for name, arguments in PFL.items():
            results[name].append(measure("pfl", "pfl_cnn.py", *rounds, *arguments))
    rows = [
        {
            "who": name,
            "round s": median(s for run in runs for s in run["round_s"]),
            "first round s": median(run["first_round_s"] for run in runs),
            "peak MB": max(run["peak_rss_mb"] for run in runs),
        }
        for name, runs in results.items()
    ]
    ours, *theirs = (float(row["round s"]) for row in rows)
    report(
        "simulation_cnn",
        rows,
        {
            "round_s": round(ours, 3),
            "speedup_vs_pfl": round(min(theirs) / ours, 2),
            "share_of_matmul": round(OPERATIONS / ours / median(matmul), 3),
            "matmul_gflops": round(median(matmul) / 1e9),
        },
    )


def _matmul_per_s() -> float:
    """Return operations a second of float32 products of 1024 x 1024, the best of several."""
    torch.set_num_threads(os.cpu_count() or 1)
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best_s = float("inf")
    for _ in range(50):
        began_s = time.perf_counter()
        left @ right
        best_s = min(best_s, time.perf_counter() - began_s)
    return 2 * 1024**3 / best_s


if __name__ == "__main__":
    main()
