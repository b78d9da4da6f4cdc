"""A million devices that come and go, in virtual time: rounds a minute, and memory by population.

Devices have 5 to 50 of scikit-learn's digits each, speeds that differ by a factor e, and are there half
of the time; one in twenty never answers, and a round ends after 60 virtual seconds. An MLP 64-64-10.

    python benchmarks/million.py [--repeats 1]

Rounds a minute are of 10,000 devices out of 1,000,000. Memory is compared at cohorts of 2,000,
as half of 10,000 devices are away, in a fresh process for each population; the run is long enough for 60,000
devices of the large ones to take part.
"""

from __future__ import annotations

import argparse
from statistics import median

from harness.report import report
from harness.simulations import simulate

POPULATIONS = (10_000, 100_000, 1_000_000)
COHORT = 10_000
SMALL_COHORT, ROUNDS = 2_000, 30


def main() -> None:
    """Run the populations, then the large cohort."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1, help="fresh processes for each row")
    options = parser.parse_args()
    settings = [(SMALL_COHORT, population, ROUNDS) for population in POPULATIONS]
    rows = []
    for cohort, population, rounds in [*settings, (COHORT, POPULATIONS[-1], 12)]:
        runs = [
            simulate(
                "million",
                *("--clients", str(population), "--rounds", str(rounds)),
                *("--set", f"run.cohort={cohort}"),
            )
            for _ in range(options.repeats)
        ]
        round_s = median(s for run in runs for s in run["round_s"])
        rows.append(
            {
                "population": population,
                "cohort": cohort,
                "rounds a minute": 60 / round_s,
                "first round s": median(run["first_round_s"] for run in runs),
                "peak MB": max(float(run["peak_rss_mb"]) for run in runs),
            }
        )
    peaks = [float(row["peak MB"]) for row in rows[: len(POPULATIONS)]]
    large = rows[-1]
    report(
        "million",
        rows,
        {
            "rounds_per_minute": round(float(large["rounds a minute"]), 1),
            "peak_rss_mb": round(float(large["peak MB"])),
            "peak_memory_ratio": round(max(peaks) / peaks[0], 3),
        },
    )


if __name__ == "__main__":
    main()
