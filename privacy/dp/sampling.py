"""Who takes part, drawn by secret coins: what amplification by Poisson sampling presumes."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, log1p

import numpy as np

from ..entropy import Entropy
from .noise import generator_of

__all__ = ["draw_poisson", "shortfall"]


def draw_poisson(present: Sequence[int], probability: float, entropy: Entropy) -> list[int]:
    """Return each of the clients with this probability, independently, in ascending order.

    Guarantees: from the operating system's entropy: not from the run's seed, which is no secret.
    """
    coins = generator_of(entropy).random(len(present)) < probability
    return sorted(int(present[place]) for place in np.flatnonzero(coins).tolist())


def shortfall(population: int, probability: float, needed: int) -> float:
    """Return the probability that fewer than `needed` of the population are drawn."""
    if probability >= 1:
        return float(population < needed)
    some = log(probability) - log1p(-probability)
    total, term = 0.0, population * log1p(-probability)
    for drawn in range(min(needed, population + 1)):
        total += exp(term)
        if drawn < population:
            term += log((population - drawn) / (drawn + 1)) + some
    return min(1.0, total)
