"""What differential privacy adds to a round: of vectorised simulations, and of a federation.

Simulations: McMahan's 2NN (199,210 params, 10 clients of 40 images a round, 5 epochs) and the
digits' MLP (4,810 params, 100 clients). Over gRPC with mutual TLS: two agents that train a network
of 25 M params for an epoch of 1,024 examples. Each with and without privacy, in turns, the cohorts of
the same size; the ratio is of the median round times of two runs in a row, its median over repeats,
ledger, norms and noise included. What privacy adds to a round over gRPC does not depend on how long
clients train: "added_grpc_s".

`record_vs_opacus`: seconds of a client's round of 40 steps of DP-SGD on the 2NN, with 30 of 600
records in a step on average, divided by those of Opacus's own engine, loader and optimizer;
`record_stacked_vs_opacus` likewise, of a client among ten in the vectorised simulation.

    python benchmarks/dp.py [--repeats 3] [--only simulation|grpc|records]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness.dp_sgd_steps import meadow_s, opacus_s, stacked_s
from harness.fleet import run_to_end
from harness.report import report
from harness.simulations import simulate

from meadow.cli.demo import DemoFederation

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
SHORT = 2
"""Simulations take seconds, and the machine is not the same from one second to the next: they are
repeated so much more often."""
WIDE = Path(__file__).parent / "apps" / "wide"
AGENTS = 2
WARM_UP_ROUNDS = 1

Rounds = Callable[[list[str]], float]
"""Runs some rounds with these settings, and returns the median of their seconds."""


def main() -> None:
    """Run with and without privacy in turns, and compare medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("simulation", "grpc", "records"))
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    if arguments.only in (None, "simulation"):
        for app, size in WORKLOADS.items():
            figures[f"overhead_{app}"] = compared(
                app, partial(simulated, app, size), SHORT * arguments.repeats + 1, rows
            )
        figures["overhead_simulation"] = max(figures.values())
    if arguments.only in (None, "grpc"):
        with (
            tempfile.TemporaryDirectory() as folder,
            DemoFederation(Path(folder), WIDE) as federation,
        ):
            federation.start_server()
            for index in range(AGENTS):
                federation.add_client(f"site-{index}")
            figures["overhead_grpc"] = compared(
                "grpc_25m", partial(federated, federation), arguments.repeats, rows
            )
        with_it, without = rows[-1]["round ms"], rows[-2]["round ms"]
        figures["added_grpc_s"] = round((with_it - without) / 1e3, 3)
    if arguments.only in (None, "records"):
        figures |= beside_opacus(arguments.repeats, rows)
    report("dp", rows, figures)


def beside_opacus(repeats: int, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return what DP-SGD of a client takes, divided by what Opacus alone takes."""
    ways: dict[str, Callable[[], float]] = {
        "Opacus alone": opacus_s,
        "a client": meadow_s,
        "of ten in one tensor": partial(stacked_s, 10),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):  # the first one warms up
        for name, way in ways.items():
            seconds[name].append(way())
    opacus, client, stacked = (median(each[1:]) for each in seconds.values())
    for name, took in seconds.items():
        row = {"workload": "record_2nn", "privacy": name, "round ms": 1e3 * median(took[1:])}
        rows.append(row)
    return {
        "record_vs_opacus": round(client / opacus, 3),
        "record_stacked_vs_opacus": round(stacked / opacus, 3),
    }


def compared(name: str, rounds: Rounds, repeats: int, rows: list[dict[str, Any]]) -> float:
    """Return what a round takes with privacy, divided by what it takes without."""
    plain, private = [], []
    for _ in range(repeats):
        plain.append(rounds([]))
        private.append(rounds([f"{SECTION}.{key}={value}" for key, value in PRIVATE.items()]))
    for kind, seconds in (("without", plain), ("with", private)):
        rows.append({"workload": name, "privacy": kind, "round ms": 1e3 * median(seconds)})
    # Neighbours are compared: the machine changes from minute to minute.
    pairs = zip(private, plain, strict=True)
    return round(median(with_it / without for with_it, without in pairs), 3)


def simulated(app: str, size: tuple[str, ...], settings: list[str]) -> float:
    """Simulate a workload in one tensor."""
    done = simulate(
        app,
        *size,
        "--executor=vectorized",
        "--set=evaluation.every=0",
        *(f"--set={each}" for each in settings),
        environment={"MEADOW_BENCHMARK_DIVISION": "iid"},
    )
    return median(done["round_s"])


def federated(federation: DemoFederation, settings: list[str]) -> float:
    """Run the wide network on the agents."""
    rows = run_to_end(federation.server_dir, WIDE, *settings)
    return median(row["duration_s"] for row in rows[WARM_UP_ROUNDS:])


if __name__ == "__main__":
    main()
