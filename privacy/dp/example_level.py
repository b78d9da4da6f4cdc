"""Example-level privacy: the terms of DP-SGD that clients get, and the divergences of its steps.

A step samples each of the client's examples independently, clips each example's gradient, adds
Gaussian noise to their sum, and divides by the expected number of sampled examples.

Sources: Abadi et al., "Deep learning with differential privacy" (2016), algorithm 1; Mironov,
Talwar, Zhang, "Renyi differential privacy of the sampled Gaussian mechanism" (2019), section 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ...errors import ProtocolError
from .accounting.concentrated import ORDERS
from .accounting.events import GaussianEvent, PoissonEvent, StepsEvent
from .accounting.gaussian import cost_of
from .noise_terms import RATE_MIN, STEPS_MAX, require_noise_terms

__all__ = ["EXAMPLE_ORDERS", "ExampleTerms", "sampled_divergences"]

CLIP_KEY = "dp-record-clip"
NOISE_KEY = "dp-record-noise-multiplier"
RATE_KEY = "dp-record-sampling-rate"
EXAMPLE_ORDERS = ORDERS[:255]
"""The orders of the Renyi divergences of sampled sums: whole numbers up to 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleTerms:
    """The terms of the clients' DP-SGD.

    Attributes:
        clip_norm: the largest L2 norm of an example's gradient.
        noise_multiplier: standard deviation of a step's noise / clip_norm.
        rate: the probability that an example is in a step's batch.
    """

    clip_norm: float
    noise_multiplier: float
    rate: float

    def steps(self, epochs: int) -> int:
        """Return the number of steps of a round: an example is in `epochs` of them on average.

        Raises:
            ProtocolError: the number is more than `STEPS_MAX`.
        """
        steps = max(1, round(epochs / self.rate))
        if steps > STEPS_MAX:
            raise ProtocolError(
                f"{epochs} epochs at {RATE_KEY} = {self.rate:g} are {steps} steps a round, more "
                f"than {STEPS_MAX}: raise the sampling rate"
            )
        return steps

    def event(self, epochs: int) -> StepsEvent:
        """Return the event that a client's round releases."""
        noisy = GaussianEvent(noise_multiplier=self.noise_multiplier)
        step = PoissonEvent(probability=self.rate, event=noisy)
        return StepsEvent(steps=self.steps(epochs), event=step)

    def record(self) -> dict[str, float]:
        """Return the terms as the entries of an instruction's ConfigRecord."""
        return {CLIP_KEY: self.clip_norm, NOISE_KEY: self.noise_multiplier, RATE_KEY: self.rate}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ExampleTerms | None:
        """Return the terms in an instruction's ConfigRecord, None if it has none.

        Raises:
            ProtocolError: a value is missing or out of its bounds.
        """
        keys = (CLIP_KEY, NOISE_KEY, RATE_KEY)
        if not any(key in record for key in keys):
            return None
        return cls(
            clip_norm=require_noise_terms(CLIP_KEY, record.get(CLIP_KEY)),
            noise_multiplier=require_noise_terms(NOISE_KEY, record.get(NOISE_KEY)),
            rate=require_noise_terms(RATE_KEY, record.get(RATE_KEY), at_least=RATE_MIN, at_most=1),
        )


@lru_cache(maxsize=64)
def sampled_divergences(rate: float, noise_multiplier: float) -> tuple[float, ...]:
    """Return the Renyi divergences of one step, at `EXAMPLE_ORDERS`.

    The neighbours differ by one example, added or removed.
    """
    return tuple(_divergence(rate, noise_multiplier, order) for order in EXAMPLE_ORDERS)


def _divergence(rate: float, noise_multiplier: float, order: int) -> float:
    cost = cost_of(noise_multiplier)
    if rate == 1 or math.isinf(cost):
        return order * cost / 2
    drawn = np.arange(order + 1)
    ways = [math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1) for k in drawn]
    odds = drawn * math.log(rate) + (order - drawn) * math.log1p(-rate)
    terms = np.array(ways) + odds + drawn * (drawn - 1) / 2 * cost
    return max(0.0, float(np.logaddexp.reduce(terms)) / (order - 1))
