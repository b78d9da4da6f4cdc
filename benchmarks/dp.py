"""What differential privacy adds to a round of a vectorised simulation, and DP-SGD beside Opacus.

Two workloads: McMahan's 2NN (199,210 params, 10 clients of 40 images a round, 5 epochs) and the
digits' MLP (4,810 params, 100 clients). Both with and without privacy, in turns, the cohorts of
the same size; the ratio is of median round times, ledger, norms and noise included.

`record_vs_opacus`: seconds of a client's round of 40 steps of DP-SGD on the 2NN, with 30 of 600
records in a step on average, divided by those of Opacus's own engine, loader and optimizer;
`record_stacked_vs_opacus` likewise, of a client among ten in the vectorised simulation.

    python benchmarks/dp.py [--repeats 3]
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from harness.record_steps import meadow_s, opacus_s, stacked_s
from harness.report import report
from harness.simulations import simulate

SECTION = "privacy.differential_privacy"
PRIVATE = {
    "enabled": "true",
    "noise_multiplier": "1.0",
    "sampling": "fixed",
    "delta": "1e-5",
}
WORKLOADS = {
    "simulation_2nn": ("--rounds", "60"),
    "simulation_digits": ("--rounds", "200"),
}


def main() -> None:
    """Run with and without privacy in turns, and compare medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    rows: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    for app, size in WORKLOADS.items():
        plain, private = [], []
        for _ in range(repeats):
            plain.append(_round_s(app, *size))
            settings = (f"{SECTION}.{key}={value}" for key, value in PRIVATE.items())
            private.append(_round_s(app, *size, *(f"--set={each}" for each in settings)))
        without, beside = median(plain), median(private)
        rows.append({"workload": app, "privacy": "without", "round ms": 1e3 * without})
        rows.append({"workload": app, "privacy": "with", "round ms": 1e3 * beside})
        figures[f"overhead_{app}"] = round(beside / without, 3)
    figures["overhead_simulation"] = max(figures.values())
    seconds: dict[str, list[float]] = {
        "Opacus alone": [],
        "a client": [],
        "of ten in one tensor": [],
    }
    for _ in range(repeats + 1):  # the first one warms up
        seconds["Opacus alone"].append(opacus_s())
        seconds["a client"].append(meadow_s())
        seconds["of ten in one tensor"].append(stacked_s(10))
    opacus, client, stacked = (median(each[1:]) for each in seconds.values())
    for name, each in seconds.items():
        rows.append({"workload": "record_2nn", "privacy": name, "round ms": 1e3 * median(each[1:])})
    figures["record_vs_opacus"] = round(client / opacus, 3)
    figures["record_stacked_vs_opacus"] = round(stacked / opacus, 3)
    report("dp", rows, figures)


def _round_s(app: str, *arguments: str) -> float:
    environment = {"MEADOW_BENCHMARK_DIVISION": "iid"}
    done = simulate(
        app,
        *arguments,
        "--executor=vectorized",
        "--set=evaluation.every=0",
        environment=environment,
    )
    return median(done["round_s"])


if __name__ == "__main__":
    main()
