"""How fast the server adds up updates: 20 of 10 million float32 values, on one thread.

Yardsticks from the same run: copying the same bytes once (np.copyto, the least that anything
could do), and the mean that Flower's own strategies compute (`aggregate_arrayrecords`, float32
sums) of Flower's own Arrays, which hold serialised bytes. "flower, zero-copy" is the same function
when reading an Array costs nothing: what its arithmetic alone takes.
Validating the updates, which happens as they arrive, is timed by itself.

    python benchmarks/aggregation.py [--repeats 9]
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from harness.report import report

from meadow.flower.messages import TensorArray, record_of, tensors_of
from meadow.strategies.algorithms.algorithm import Update
from meadow.strategies.algorithms.mean import MeanAggregator
from meadow.strategies.rounds.checks import fault_in

CLIENTS = 20
VALUES = 10_000_000


class ViewArray(TensorArray):
    """An Array that is read without a copy."""

    def numpy(self) -> np.ndarray:
        return self.tensor.numpy()


def main() -> None:
    """Time everything in turns, so that a busy machine slows all of it alike."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats

    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(VALUES, dtype=np.float32) for _ in range(CLIENTS)]
    copies = [np.zeros(VALUES, np.float32) for _ in range(CLIENTS)]
    examples = [float(count) for count in generator.integers(50, 500, CLIENTS)]
    records = [record_of({"w": ViewArray(values)}) for values in arrays]
    updates = [
        Update(client=index, params=tensors_of(record), weight=weight)
        for index, (record, weight) in enumerate(zip(records, examples, strict=True))
    ]
    serialised = [ArrayRecord({"w": Array(values)}) for values in arrays]
    aggregator = MeanAggregator()

    def copy() -> None:
        for source, target in zip(arrays, copies, strict=True):
            np.copyto(target, source)

    def validate() -> None:
        for update in updates:
            if fault := fault_in(update.params["w"]):
                raise SystemExit(fault)

    def fold() -> np.ndarray:
        total = aggregator.zero({"w": arrays[0]})
        return aggregator.finish(aggregator.fold(total, updates)).mean["w"]

    def flower(arrays_of_replies: list[ArrayRecord]) -> ArrayRecord:
        replies = [
            RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": weight})})
            for record, weight in zip(arrays_of_replies, examples, strict=True)
        ]
        return aggregate_arrayrecords(replies, "num-examples")

    np.testing.assert_allclose(fold(), flower(serialised)["w"].numpy(), rtol=1e-3, atol=1e-5)
    seconds = time_in_turns(
        {
            "copy": copy,
            "fold": fold,
            "validate": validate,
            "flower": lambda: flower(serialised),
            "flower, zero-copy": lambda: flower(records),
        },
        repeats,
    )
    gigabytes = CLIENTS * VALUES * 4 / 1e9
    report(
        "aggregation",
        [
            {
                "what": what,
                "updates": CLIENTS,
                "values": VALUES,
                "seconds": time_s,
                "GB/s": gigabytes / time_s,
            }
            for what, time_s in seconds.items()
        ],
        {
            "share_of_memcpy": round(seconds["copy"] / seconds["fold"], 3),
            "speedup_vs_flower": round(seconds["flower"] / seconds["fold"], 2),
            "speedup_vs_flower_zero_copy": round(seconds["flower, zero-copy"] / seconds["fold"], 2),
            "gb_per_s": round(gigabytes / seconds["fold"], 2),
            "memcpy_gb_per_s": round(gigabytes / seconds["copy"], 2),
            "validation_gb_per_s": round(gigabytes / seconds["validate"], 2),
        },
    )


def time_in_turns(actions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return each action's median time in seconds, over that many turns."""
    times: dict[str, list[float]] = {what: [] for what in actions}
    for _ in range(repeats):
        for what, action in actions.items():
            began_s = time.perf_counter()
            action()
            times[what].append(time.perf_counter() - began_s)
    return {what: median(values) for what, values in times.items()}


if __name__ == "__main__":
    main()
