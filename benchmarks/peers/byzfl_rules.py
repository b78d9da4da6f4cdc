"""ByzFL's aggregators on one thread: `byzfl_rules.py CLIENTS BYZANTINE VALUES` prints their seconds.

Only its aggregators are loaded: the package itself also imports its training framework.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import sysconfig
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

MEMORY_BYTES = 12 << 30
"""What does not fit is left out, rather than the machine's memory used up."""


def aggregators() -> Any:
    """Import byzfl.aggregators without byzfl."""
    package = types.ModuleType("byzfl")
    package.__path__ = [str(Path(sysconfig.get_paths()["purelib"]) / "byzfl")]
    sys.modules["byzfl"] = package
    import byzfl.aggregators

    return byzfl.aggregators


def main() -> None:
    """Time each rule once."""
    clients, byzantine, values = (int(text) for text in sys.argv[1:])
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    rules = aggregators()
    generator = np.random.default_rng(0)
    rows = torch.from_numpy(generator.standard_normal((clients, values), dtype=np.float32))
    trimmed, mixing = rules.TrMean(byzantine), rules.NNM(byzantine)
    timed: dict[str, Callable[[], Any]] = {
        "mean": lambda: rules.Average()(rows),
        "median": lambda: rules.Median()(rows),
        "trimmed_mean": lambda: trimmed(rows),
        "geometric_median": lambda: rules.GeometricMedian()(rows),
        "centred_clipping": lambda: rules.CenteredClipping(L=3, tau=900.0)(rows),
        "krum": lambda: rules.Krum(byzantine)(rows),
        "multi_krum": lambda: rules.MultiKrum(byzantine)(rows),
        "bucketing+median": lambda: rules.Median()(rules.Bucketing(2)(rows)),
        "nnm+trimmed_mean": lambda: trimmed(mixing(rows)),
        "clip+nnm+trimmed_mean": lambda: trimmed(mixing(rules.Clipping(900.0)(rows.clone()))),
    }
    seconds = {}
    for name, action in timed.items():
        began_s = time.perf_counter()
        try:
            action()
        except (MemoryError, RuntimeError) as error:  # NNM gathers n x (n - f) x values numbers
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        seconds[name] = time.perf_counter() - began_s
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
