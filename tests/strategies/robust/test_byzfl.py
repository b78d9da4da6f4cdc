"""Rules and pre-aggregations against ByzFL's numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from meadow.strategies.robust.aggregator import RobustAggregator
from meadow.strategies.robust.rules import robust_rule

REFERENCE = json.loads(Path(__file__).with_name("byzfl_reference.json").read_text())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "case", REFERENCE["found"], ids=lambda case: "+".join([*case["before"], case["aggregation"]])
)
def test_rules_agree_with_byzfl(kit, case, dtype):
    """Every rule gives ByzFL's values within 1e-5, over params of two tensors that are not zero."""
    rows = np.array(REFERENCE["rows"])
    before = {"a": np.full((2, 3), 0.5, dtype), "b": np.arange(10, dtype=dtype)}
    rule = robust_rule(
        case["aggregation"],
        byzantine=REFERENCE["byzantine"],
        preaggregation=case["before"],
        clip_norm=REFERENCE["clip"],
    )
    aggregator = RobustAggregator(rule=rule)
    updates = [
        kit.update(
            client + 1,
            weight=1.0 + client,
            params={
                "a": (before["a"] + row[:6].reshape(2, 3)).astype(dtype),
                "b": (before["b"] + row[6:]).astype(dtype),
            },
        )
        for client, row in enumerate(rows)
    ]
    mean = aggregator.finish(aggregator.fold(aggregator.zero(before), updates)).mean
    change = np.concatenate([(mean[name] - before[name]).reshape(-1) for name in before])
    np.testing.assert_allclose(change, case["result"], atol=1e-5, rtol=0)
