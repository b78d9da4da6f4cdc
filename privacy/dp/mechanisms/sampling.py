"""Secret Poisson sampling of cohorts, which amplification by sampling presumes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....randomness.entropy import Entropy
from .noise import generator_of

__all__ = ["draw_poisson"]


def draw_poisson(present: Sequence[int], probability: float, entropy: Entropy) -> list[int]:
    """Return each of the clients independently with this probability, in ascending order.

    Guarantees: the sampling bits come from `entropy`, the operating system's, and not from the run's
        seed, which is not secret.
    """
    chosen = generator_of(entropy).random(len(present)) < probability
    return sorted(int(present[place]) for place in np.flatnonzero(chosen).tolist())
