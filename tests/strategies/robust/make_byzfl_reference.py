"""Writes byzfl_reference.json: what ByzFL 0.0.11 makes of some random rows.

    pip install --no-deps byzfl==0.0.11     # beside torch, scipy and numpy
    python tests/strategies/robust/make_byzfl_reference.py

Only its aggregators are loaded; the package itself would import its training framework too.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np

ROWS, BYZANTINE, VALUES, CLIP = 11, 2, 16, 3.5
BEFORE = [(), ("clip",), ("adaptive_clip",), ("nnm",), ("clip", "nnm"), ("nnm", "adaptive_clip")]


def main() -> None:
    """Compute every rule plainly and after clipping and NNM, and one rule after everything."""
    package = types.ModuleType("byzfl")
    package.__path__ = list(importlib.util.find_spec("byzfl").submodule_search_locations)
    sys.modules["byzfl"] = package
    from byzfl import aggregators as byzfl

    before = {
        "clip": lambda rows: byzfl.Clipping(CLIP)(rows.copy()),
        "adaptive_clip": lambda rows: byzfl.ARC(BYZANTINE)(rows.copy()),
        "nnm": byzfl.NNM(BYZANTINE),
    }
    rules = {
        "mean": byzfl.Average,
        "median": byzfl.Median,
        "trimmed_mean": lambda: byzfl.TrMean(BYZANTINE),
        "geometric_median": lambda: byzfl.GeometricMedian(nu=1e-6, T=3),
        "centred_clipping": lambda: byzfl.CenteredClipping(L=3, tau=CLIP),
        "krum": lambda: byzfl.Krum(BYZANTINE),
        "multi_krum": lambda: byzfl.MultiKrum(BYZANTINE),
        "mda": lambda: byzfl.MDA(BYZANTINE),
    }
    rows = np.random.default_rng(11).standard_normal((ROWS, VALUES)).round(3)
    rows[:BYZANTINE] *= 4
    found = []
    for name, rule in rules.items():
        for names in BEFORE if name == "trimmed_mean" else [(), ("clip", "nnm")]:
            mixed = rows
            for each in names:
                mixed = before[each](mixed)
            result = np.asarray(rule()(mixed)).round(12).tolist()
            found.append({"aggregation": name, "before": names, "result": result})
    outcome = {"byzantine": BYZANTINE, "clip": CLIP, "rows": rows.tolist(), "found": found}
    path = Path(__file__).with_name("byzfl_reference.json")
    path.write_text(json.dumps(outcome, indent=None) + "\n")


if __name__ == "__main__":
    main()
