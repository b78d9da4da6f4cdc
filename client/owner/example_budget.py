"""The cost of rounds for example-level privacy: the budget `policy.record_epsilon_max`.

The steps of DP-SGD protect an example, and so does noise that protects the whole client. The cost
of rounds adds up as Renyi divergences, at whole orders up to 256.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ...privacy.dp.accounting.concentrated import epsilon_of_divergences
from ...privacy.dp.accounting.events import GaussianEvent, PoissonEvent, StepsEvent
from ...privacy.dp.example_level import EXAMPLE_ORDERS, sampled_divergences

__all__ = ["Release", "record_epsilon", "steps_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A number of rounds of one kind.

    Attributes:
        cost: that of the noise that protects the client; None if there is none.
        steps: the steps of DP-SGD; None if there are none.
    """

    rounds: int
    cost: float | None
    steps: StepsEvent | None

    def divergences(self) -> list[float]:
        """Return the rounds' Renyi divergences; infinite without either noise."""
        of_client = [math.inf] * len(EXAMPLE_ORDERS)
        if self.cost is not None:
            of_client = [self.cost / 2 * order for order in EXAMPLE_ORDERS]
        of_steps = [math.inf] * len(EXAMPLE_ORDERS)
        if self.steps is not None:
            step = self.steps.event
            one = sampled_divergences(step.probability, step.event.noise_multiplier)
            of_steps = [self.steps.steps * each for each in one]
        return [self.rounds * min(pair) for pair in zip(of_client, of_steps, strict=True)]


def record_epsilon(releases: Iterable[Release], delta: float) -> float:
    """Return the epsilon of all these rounds together, for one example.

    Edge cases: infinite if one of them had no noise.
    """
    columns = [each.divergences() for each in releases]
    total = [math.fsum(column) for column in zip(*columns, strict=True)]
    return epsilon_of_divergences(total, delta) if total else 0.0


def steps_of(multiplier: object, rate: object, steps: object) -> StepsEvent | None:
    """Return the steps of DP-SGD from a ledger's columns, None if the ledger has none."""
    if multiplier is None or rate is None or steps is None:
        return None
    noisy = GaussianEvent(noise_multiplier=float(str(multiplier)))
    step = PoissonEvent(probability=float(str(rate)), event=noisy)
    return StepsEvent(steps=int(str(steps)), event=step)
