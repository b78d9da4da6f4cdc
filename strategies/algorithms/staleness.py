"""How much an update counts whose client began with older params than there are by now.

An update's staleness is the number of rounds that were committed since its params were sent.

Source: Xie, Koyejo, Gupta, "Asynchronous federated optimization" (2019), section 5.2: the three
functions; their experiments have the defaults. Nguyen et al. (2022) take the polynomial with 1/2.
"""

from __future__ import annotations

from collections.abc import Callable

from .bounds import require_number, require_whole

__all__ = ["Weighting", "constant", "hinge", "polynomial"]

Weighting = Callable[[int], float]
"""Staleness -> a factor in (0, 1]; 1 for staleness 0."""


def constant() -> Weighting:
    """Count every update in full."""
    return lambda staleness: 1.0


def polynomial(*, exponent: float = 0.5) -> Weighting:
    """Return (1 + staleness) ** -exponent.

    Raises:
        ConfigError: the exponent is negative.
    """
    power = require_number("exponent", exponent, at_least=0)
    return lambda staleness: float((1 + staleness) ** -power)


def hinge(*, slope: float = 10.0, grace: int = 4) -> Weighting:
    """Return 1 up to `grace` rounds, then 1 / (slope * (staleness - grace) + 1).

    Raises:
        ConfigError: one of them is negative.
    """
    steepness = require_number("slope", slope, at_least=0)
    free = require_whole("grace", grace, at_least=0)
    return lambda staleness: 1 / (steepness * max(0, staleness - free) + 1)
