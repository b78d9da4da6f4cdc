"""How long McMahan's 2NN takes to an accuracy: MNIST, 100 clients of 40 images, 10 a round.

Batches of 10, 5 epochs, SGD 0.1, until 0.90 (IID) or 0.80 (two-class shards) of 1,000 test images
are right. The time is that of the rounds up to then; nobody's evaluation is counted: Meadow runs
once with it, to learn the number of rounds, and once without. pfl-research does the same. How many
rounds it takes is a matter of who is drawn: every repeat has a seed of its own, and medians count.

    python benchmarks/simulation_2nn.py [--repeats 5]
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from harness.peers import measure
from harness.report import report
from harness.simulations import simulate

TARGETS = {"iid": 0.90, "shards": 0.80}
ROUNDS = 100


def main() -> None:
    """Run everybody in turns, and compare medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    rows: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    for division, target in TARGETS.items():
        outcomes: dict[str, list[dict[str, float]]] = {"meadow": [], "pfl": [], "pfl, 2": []}
        for seed in range(repeats):
            outcomes["meadow"].append(_meadow(division, target, seed))
            for name, processes in (("pfl", "1"), ("pfl, 2", "2")):
                outcomes[name].append(_pfl(division, target, seed, processes))
        for name, runs in outcomes.items():
            shown = {key: median(run[key] for run in runs) for key in runs[0]}
            who = {"pfl": "pfl, 1 process", "pfl, 2": "pfl, 2 processes"}.get(name, name)
            rows.append({"division": division, "who": who, **shown})
        ours, one, two = (row["seconds to it"] for row in rows[-3:])
        figures[f"speedup_vs_pfl_{division}"] = round(one / ours, 2)
        figures[f"speedup_vs_pfl_2_processes_{division}"] = round(two / ours, 2)
        figures[f"round_speedup_vs_pfl_{division}"] = round(
            rows[-2]["round ms"] / rows[-3]["round ms"], 2
        )
        figures[f"round_ms_{division}"] = round(rows[-3]["round ms"], 2)
    figures["speedup_vs_pfl"] = min(figures[f"speedup_vs_pfl_{name}"] for name in TARGETS)
    report("simulation_2nn", rows, figures)


def _meadow(division: str, target: float, seed: int) -> dict[str, float]:
    environment = {"MEADOW_BENCHMARK_DIVISION": division}
    rounds = ("--rounds", str(ROUNDS), "--seed", str(seed))
    accuracy = simulate("simulation_2nn", *rounds, environment=environment)["accuracy"]
    timed = simulate(
        "simulation_2nn", *rounds, "--set", "evaluation.every=0", environment=environment
    )
    needed = next((number for number, value in accuracy.items() if value >= target), None)
    return _outcome(timed["round_s"], needed)


def _pfl(division: str, target: float, seed: int, processes: str) -> dict[str, float]:
    said = ("--division", division, "--processes", processes, "--seed", str(seed))
    run = measure("pfl", "pfl_2nn.py", *said)
    reached = (place + 1 for place, value in enumerate(run["accuracy"]) if value >= target)
    return _outcome(run["round_s"], next(reached, None))


def _outcome(round_s: list[float], needed: int | None) -> dict[str, float]:
    if needed is None:
        raise SystemExit("the accuracy was not reached")
    middle = median(round_s)
    return {"rounds to it": needed, "round ms": middle * 1e3, "seconds to it": needed * middle}


if __name__ == "__main__":
    main()
