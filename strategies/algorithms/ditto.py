"""Ditto: beside the common params every client trains its own, which stay near the common ones.

Source: Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization"
(2021), algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace

from .algorithm import Algorithm
from .bounds import require_number
from .builders import builder
from .fedavg import fedavg

__all__ = ["ditto"]


@builder(
    client="trains twice: the common params, and its own",
    keeps="params of its own",
    personal=True,
)
def ditto(*, ditto_lambda: float = 0.1) -> Algorithm:
    """Average as FedAvg does; clients also minimise their loss + lambda / 2 |own - global|^2.

    Edge cases: a client's own params begin as the global ones of its first round.
    Raises:
        ConfigError: `ditto_lambda` is negative or not a finite number.
    """
    pull = require_number("ditto_lambda", ditto_lambda, at_least=0)
    return replace(
        fedavg(),
        name="ditto",
        client="meadow.training.algorithms.personalization:Ditto",
        client_config={"algorithm": "ditto", "ditto-lambda": pull},
        evaluate_config={"algorithm": "ditto"},
    )
