"""What a simulation's rounds take now and at an earlier commit, in turns on the same machine.

simulation_digits with 100 and 1,000 clients, simulation_scale, and simulation_2nn with both divisions, with
this commit's apps and settings. The earlier commit is checked out into a folder of its own; without
`--before` it is the last one whose fast paths were probed and not proven (docs/decisions/0019), so that
the ratios say what being right costs. Figures are medians of the runs' medians.

    python benchmarks/simulation_before.py [--before COMMIT] [--repeats 5]
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from harness.report import report
from harness.simulations import simulate

REPOSITORY = Path(__file__).resolve().parents[1]
PROBED = "306ade6"

DIGITS = ("simulation_digits", "--rounds", "20", "--set", "evaluation.every=20")
MCMAHAN = ("simulation_2nn", "--rounds", "100", "--seed", "0", "--set", "evaluation.every=0")
DIVISION = "MEADOW_BENCHMARK_DIVISION"
RUNS: dict[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "digits": ((*DIGITS, "--clients", "100"), {}),
    "digits_1000": ((*DIGITS, "--clients", "1000"), {}),
    "scale": (("simulation_scale",), {}),
    "2nn_iid": (MCMAHAN, {DIVISION: "iid"}),
    "2nn_shards": (MCMAHAN, {DIVISION: "shards"}),
}


def main() -> None:
    """Run both commits in turns, and compare medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", default=PROBED, metavar="COMMIT")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    round_ms: dict[str, dict[str, list[float]]] = {name: {"before": [], "now": []} for name in RUNS}
    with _checkout(options.before) as earlier, tempfile.TemporaryDirectory() as here:
        places = {
            "before": _named(earlier, earlier / "build"),
            "now": _named(REPOSITORY, Path(here)),
        }
        for repeat in range(options.repeats):
            order = [*places] if repeat % 2 == 0 else [*reversed(places)]
            for name, (arguments, environment) in RUNS.items():
                for who in order:
                    round_ms[name][who].append(_round_ms(places[who], arguments, environment))
    rows: list[dict[str, Any]] = []
    figures = {}
    for name, runs in round_ms.items():
        before, now = (median(runs[who]) for who in ("before", "now"))
        figures[f"time_vs_before_{name}"] = round(now / before, 2)
        rows.append({"benchmark": name, "before ms": before, "now ms": now})
        rows[-1] |= {
            f"{who} {word}": value(runs[who])
            for who in ("before", "now")
            for word, value in (("least", min), ("most", max))
        }
    figures["time_vs_before_max"] = max(figures.values())
    report("simulation_before", rows, figures)


def _round_ms(place: Path, arguments: tuple[str, ...], environment: Mapping[str, str]) -> float:
    run = simulate(*arguments, environment=environment, meadow=place)
    return median(run["round_s"]) * 1e3


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """Give a folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        git = ("git", "-C", str(REPOSITORY))
        packed = subprocess.run([*git, "archive", commit], check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], check=True, input=packed.stdout)
        yield Path(folder)


def _named(checkout: Path, folder: Path) -> Path:
    """Return a folder for PYTHONPATH in which `meadow` is that checkout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meadow").symlink_to(checkout)
    return folder


if __name__ == "__main__":
    main()
