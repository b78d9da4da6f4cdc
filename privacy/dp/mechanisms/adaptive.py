"""A clip norm that follows a privately estimated quantile of the norms of the clients' deltas.

    C <- C * exp(-rate * (within - quantile))

where `within` is the noisy share of clients whose delta had a norm of at most C.

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
    """The rule by which the clip norm is updated.

    Attributes:
        quantile: the target share of clients whose delta is within the clip norm.
        rate: the learning rate of the clip norm's logarithm.
        count_noise_stddev: standard deviation of the noise on the number of clients within, in clients.
    """

    quantile: float = 0.5
    rate: float = 0.2
    count_noise_stddev: float = 1.0

    def __post_init__(self) -> None:
        require_number("target_quantile", self.quantile, at_least=0, at_most=1)
        require_number("clip_learning_rate", self.rate, above=0)
        require_number("count_noise_stddev", self.count_noise_stddev, above=0)

    def after(self, norm: float, within: float) -> float:
        """Return the clip norm of the next round."""
        moved = norm * math.exp(-self.rate * (within - self.quantile))
        return min(NORM_MAX, max(NORM_MIN, moved))

    def params_noise_multiplier(self, noise_multiplier: float) -> float:
        """Return the noise multiplier of the params for which params and count together have
        `noise_multiplier`.

        Raises:
            ConfigError: the release of the count alone exceeds that.
        """
        left = noise_multiplier**-2.0 - (2 * self.count_noise_stddev) ** -2.0
        if left <= 0:
            raise ConfigError(
                f"count_noise_stddev must be > noise_multiplier / 2 = {noise_multiplier / 2:g}, got "
                f"{self.count_noise_stddev:g}: the count of clipped clients alone would reveal more than "
                "the whole round may"
            )
        return float(left**-0.5)
