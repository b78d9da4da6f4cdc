"""How fast robust rules are: 100 updates of a million float32 params, 20 adversaries, one thread.

ByzFL's aggregators, on the same values as a torch tensor, are timed in an environment of their
own; rules that it lacks, or whose cost there is exponential (MDA), have no ratio.

    python benchmarks/robust.py [--repeats 3] [--without-peer]
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from harness.peers import measure
from harness.report import report

from meadow.flower.messages import MemoryTensor
from meadow.strategies.algorithms.algorithm import Update
from meadow.strategies.robust.aggregator import RobustAggregator
from meadow.strategies.robust.rules import AggregationRule, robust_rule

CLIENTS = 100
BYZANTINE = 20
MDA_BYZANTINE = 10
VALUES = 1_000_000
RULES: dict[str, tuple[str, Sequence[str]]] = {
    "mean": ("mean", ()),
    "median": ("median", ()),
    "trimmed_mean": ("trimmed_mean", ()),
    "geometric_median": ("geometric_median", ()),
    "centred_clipping": ("centred_clipping", ()),
    "krum": ("krum", ()),
    "multi_krum": ("multi_krum", ()),
    "bulyan": ("bulyan", ()),
    "mda": ("mda", ()),
    "fltrust": ("fltrust", ()),
    "nnm+trimmed_mean": ("trimmed_mean", ("nnm",)),
    "clip+nnm+trimmed_mean": ("trimmed_mean", ("clip", "nnm")),
    "bucketing+median": ("median", ("bucketing",)),
}


def main() -> None:
    """Time every rule, then ByzFL's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without-peer", action="store_true")
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    values = generator.standard_normal((CLIENTS, VALUES), dtype=np.float32)
    updates = [
        Update(client=row + 1, params={"w": MemoryTensor(values[row])}, weight=1.0)
        for row in range(CLIENTS)
    ]
    ours = {what: seconds(rule_of(what), updates, arguments.repeats) for what in RULES}
    peer: dict[str, Any] = {}
    if not arguments.without_peer:
        peer = measure("byzfl", "byzfl_rules.py", str(CLIENTS), str(BYZANTINE), str(VALUES))
    rows = [
        {
            "rule": what,
            "updates": CLIENTS,
            "values": VALUES,
            "seconds": took_s,
            "ByzFL's": peer.get(what, ""),
            "ratio": peer[what] / took_s if what in peer else "",
        }
        for what, took_s in ours.items()
    ]
    figures = {f"{what}_s": round(took_s, 3) for what, took_s in ours.items()}
    figures |= {f"byzfl_{what}_s": round(took_s, 3) for what, took_s in peer.items()}
    report("robust", rows, {**figures, "slowest_s": round(max(ours.values()), 3)})


def rule_of(what: str) -> AggregationRule:
    """Return the rule that a row of the table is of."""
    aggregation, before = RULES[what]
    return robust_rule(
        aggregation,
        byzantine=MDA_BYZANTINE if aggregation == "mda" else BYZANTINE,
        preaggregation=before,
        clip_norm=900.0,
        trusted=1,
    )


def seconds(rule: AggregationRule, updates: Sequence[Update], repeats: int) -> float:
    """Return the least time that a round's aggregation took."""
    aggregator, took = RobustAggregator(rule=rule), []
    like = {"w": np.zeros(VALUES, np.float32)}
    for _ in range(repeats):
        began_s = time.perf_counter()
        aggregator.finish(aggregator.fold(aggregator.zero(like), updates))
        took.append(time.perf_counter() - began_s)
    return min(took)


if __name__ == "__main__":
    main()
