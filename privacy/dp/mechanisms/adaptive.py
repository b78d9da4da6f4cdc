"""A clip that follows a quantile of the clients' norms, itself learnt privately.

    C <- C * exp(-rate * (within - quantile))

where `within` is the noisy share of clients whose change was within C.

Source: Andrew, Thakkar, McMahan, Ramaswamy, "Differentially private learning with adaptive
clipping" (2021), algorithm 1 and theorem 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....errors import ConfigError
from ....strategies.algorithms.bounds import require_number

__all__ = ["AdaptiveClip"]

NORM_MIN = 1e-9
NORM_MAX = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClip:
    """How the clip moves.

    Attributes:
        quantile: the share of clients that should be within the clip.
        rate: how fast it moves, a round.
        count_stddev: of the noise on the number of clients within, in clients.
    """

    quantile: float = 0.5
    rate: float = 0.2
    count_stddev: float = 1.0

    def __post_init__(self) -> None:
        require_number("target_quantile", self.quantile, at_least=0, at_most=1)
        require_number("clip_learning_rate", self.rate, above=0)
        require_number("count_noise", self.count_stddev, above=0)

    def after(self, norm: float, within: float) -> float:
        """Return the clip of the next round."""
        moved = norm * math.exp(-self.rate * (within - self.quantile))
        return min(NORM_MAX, max(NORM_MIN, moved))

    def params_multiplier(self, noise_multiplier: float) -> float:
        """Return the params' noise multiplier for which params and count together have this one.

        Raises:
            ConfigError: the count alone tells more than that.
        """
        left = noise_multiplier**-2.0 - (2 * self.count_stddev) ** -2.0
        if left <= 0:
            raise ConfigError(
                f"count_noise must be > noise_multiplier / 2 = {noise_multiplier / 2:g}, got "
                f"{self.count_stddev:g}: the count of clipped clients alone would tell more than "
                "the whole round may"
            )
        return float(left**-0.5)
