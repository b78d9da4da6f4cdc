"""Who takes part, drawn by secret coins: what amplification by Poisson sampling presumes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....randomness.entropy import Entropy
from .noise import generator_of

__all__ = ["draw_poisson"]


def draw_poisson(present: Sequence[int], probability: float, entropy: Entropy) -> list[int]:
    """Return each of the clients with this probability, independently, in ascending order.

    Guarantees: from the operating system's entropy: not from the run's seed, which is no secret.
    """
    chosen = generator_of(entropy).random(len(present)) < probability
    return sorted(int(present[place]) for place in np.flatnonzero(chosen).tolist())
