"""Bytes on the way and accuracy on held-out MNIST for every way to compress, 10 clients.

python benchmarks/compression.py [--rounds 60] [--only int8,top_k] [--seeds 1]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean

from harness.report import report

from meadow.simulations.run import simulate

APP = Path(__file__).parent / "apps" / "mnist"
WAYS = {
    "none": [],
    "fp16": ["compression.upload=fp16"],
    "bf16": ["compression.upload=bf16"],
    "int8": ["compression.upload=int8"],
    "int8 both ways": ["compression.upload=int8", "compression.download=int8"],
    "int8 + zstd": ["compression.upload=int8", "compression.zstd=true"],
    "int4": ["compression.upload=int4"],
    "top_k": ["compression.upload=top_k", "compression.fraction=0.01"],
    "top_k + zstd": [
        "compression.upload=top_k",
        "compression.fraction=0.01",
        "compression.zstd=true",
    ],
    "random_k": ["compression.upload=random_k", "compression.fraction=0.1"],
    "low_rank": ["compression.upload=low_rank", "compression.rank=2"],
}


def main() -> None:
    """Simulate every way, and compare with none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", default=",".join(WAYS))
    parser.add_argument("--seeds", default="1")
    arguments = parser.parse_args()
    rows, figures = [], {}
    for way in arguments.only.split(","):
        runs = [run(way, arguments.rounds, int(seed)) for seed in arguments.seeds.split(",")]
        row = {
            "compression": way,
            "rounds": arguments.rounds,
            "bytes up a round": round(mean(up for _, up, _ in runs)),
            "bytes down a round": round(mean(down for _, _, down in runs)),
            "accuracy": mean(accuracy for accuracy, _, _ in runs),
        }
        rows.append(row)
        figures[f"{way} accuracy"] = round(float(row["accuracy"]), 4)
        figures[f"{way} up"] = int(row["bytes up a round"])
        figures[f"{way} down"] = int(row["bytes down a round"])
        print(row, flush=True)
    report("compression", rows, figures)


def run(way: str, rounds: int, seed: int) -> tuple[float, float, float]:
    """Return a run's accuracy, and the bytes of its rounds but the last, which evaluates too."""
    overrides = [f"run.rounds={rounds}", f"run.seed={seed}", f"evaluation.every={rounds}"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        summary = simulate(APP, overrides=[*overrides, *WAYS[way]], executor="sequential", out=out)
        lines = (out / "metrics.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines[:-1]]
    up, down = (mean(row[key] for row in told) for key in ("bytes_received", "bytes_sent"))
    return float(summary["final"]["server"]["accuracy"]), up, down


if __name__ == "__main__":
    main()
