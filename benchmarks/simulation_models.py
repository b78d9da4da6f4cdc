"""What a round costs with models that people have: every executor beside plain loops and pfl-research.

Ten models (peers/models.py), 20 clients of 40 samples, batches of ten. A plain loop is federated
averaging in torch alone, with one and with two threads; pfl-research runs with one process, two
processes and two threads. Everybody runs in turns; a figure is the median of all rounds but the first.
`auto_vs_best_plain` is the faster plain loop's time over that of `auto`.

Meadow's runs are of 500 rounds, which is what `auto` chooses for, and are interrupted after --seconds:
at least five rounds, at most a hundred.

    python benchmarks/simulation_models.py [--repeats 3] [--seconds 3] [--only MODEL]
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from harness.peers import measure
from harness.report import report
from harness.simulations import simulate

PEERS = Path(__file__).resolve().parent / "peers"
sys.path.insert(0, str(PEERS))

from models import MODELS, Work

EXECUTORS = ("sequential", "vectorized", "processes", "auto")
PLAIN = {"plain, 1 thread": 1, "plain, 2 threads": 2}
PFL = {
    "pfl": ("--processes", "1"),
    "pfl, 2 processes": ("--processes", "2"),
    "pfl, 2 threads": ("--processes", "1", "--threads", "2"),
}

RUN_ROUNDS = 500
ROUNDS_MIN, ROUNDS_MAX = 5, 100


def main() -> None:
    """Run everybody in turns, and compare medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", action="append", choices=sorted(MODELS))
    parser.add_argument("--skip-pfl", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.only or MODELS:
        row = _row(name, MODELS[name], options.repeats, options.seconds, pfl=not options.skip_pfl)
        print(json.dumps(row), file=sys.stderr, flush=True)  # the table comes minutes later
        rows.append(row)
    best = [min(row[name] for name in PLAIN) for row in rows]
    plain = [plain / row["auto"] for plain, row in zip(best, rows, strict=True)]
    alone = [min(row[n] for n in PLAIN) / row["sequential"] for row in rows]
    one = [row["plain, 1 thread"] / row["sequential"] for row in rows]
    figures = {
        "auto_vs_best_plain_min": min(plain),
        "auto_vs_best_plain_geomean": _geomean(plain),
        "sequential_vs_plain_min": min(one),
        "sequential_vs_best_plain_min": min(alone),
    }
    if not options.skip_pfl:
        pfl = [min(row[name] for name in PFL) / row["auto"] for row in rows]
        figures["auto_vs_pfl_geomean"] = _geomean(pfl)
    report("simulation_models", rows, {name: round(value, 3) for name, value in figures.items()})


def _row(model: str, work: Work, repeats: int, seconds_each: float, *, pfl: bool) -> dict[str, Any]:
    one_s = median(_plain(model, 3, 1)["round_s"])
    rounds = max(ROUNDS_MIN, min(ROUNDS_MAX, round(seconds_each / one_s)))
    who: dict[str, Callable[[], dict[str, Any]]] = {
        **{name: lambda t=threads: _plain(model, rounds, t) for name, threads in PLAIN.items()},
        **{name: lambda n=name: _meadow(model, work, rounds, n) for name in EXECUTORS},
    }
    if pfl:
        asked = (model, "--rounds", str(rounds))
        who |= {name: lambda more=more: _pfl(*asked, *more) for name, more in PFL.items()}
    seconds: dict[str, list[float]] = {name: [] for name in who}
    chosen = []
    for _ in range(repeats):
        for name, run in who.items():
            outcome = run()
            seconds[name] += outcome["round_s"]
            chosen += [outcome.get("executor", "")] * (name == "auto")
    row: dict[str, Any] = {"model": model}
    row |= {name: round(median(values), 4) for name, values in seconds.items()}
    return {**row, "chosen": ", ".join(sorted(set(chosen)))}


def _plain(model: str, rounds: int, threads: int) -> dict[str, Any]:
    command = [sys.executable, str(PEERS / "plain_loop.py"), model]
    command += ["--rounds", str(rounds), "--threads", str(threads)]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    outcome: dict[str, Any] = json.loads(made.splitlines()[-1])
    return outcome


def _pfl(*asked: str) -> dict[str, Any]:
    try:
        return measure("pfl", "pfl_models.py", *asked)
    except RuntimeError:  # its processes sometimes abort as they end
        return measure("pfl", "pfl_models.py", *asked)


def _meadow(model: str, work: Work, rounds: int, executor: str) -> dict[str, Any]:
    settings = {
        "simulation.executor": executor,
        "run.rounds": RUN_ROUNDS,
        "training.optimizer": work.optimizer,
        "training.learning_rate": work.learning_rate,
    }
    if work.momentum:
        settings["training.momentum"] = work.momentum
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    environment = {"MODEL": model}
    return simulate("simulation_models", *given, environment=environment, first_rounds=rounds + 1)


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


if __name__ == "__main__":
    main()
