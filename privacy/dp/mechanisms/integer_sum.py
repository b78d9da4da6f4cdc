"""A noisy sum of whole numbers modulo 2^bits: how fine the grid is, and how much noise it needs.

Every client's rotated vector is scaled, rounded, and gets a share of the noise. The grid is as fine
as is useful for rounding, and coarser only if sums could exceed the modulus.

The variance is chosen so that the sum's Renyi divergences are at most those of a Gaussian sum with
the same noise multiplier z: order / (2 z^2). So a round's event does not depend on the model's
size. For Skellam noise, this follows from theorem 3.5 of Agarwal et al. (2021) if 6 |x|_1 <=
|x|_2^2, which holds if the norm is at least 6 sqrt(d), and variance^2 / (variance + 1) >=
z^2 |x|_2^2; for discrete Gaussian noise see `discrete_gaussian_variance`.

Sources: Agarwal, Kairouz, Liu, "The Skellam mechanism for differentially private federated
learning" (2021); Kairouz, Liu, Steinke, "The distributed discrete Gaussian mechanism for
federated learning with secure aggregation" (2021), theorem 20 (values of a rotated vector).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ....errors import ConfigError
from .discrete_gaussian import discrete_gaussian, discrete_gaussian_tail, discrete_gaussian_variance
from .inversion import STDDEV_MAX, Words
from .rounding import rounded_norm
from .skellam import skellam, skellam_tail

__all__ = ["LAWS", "IntegerSum", "Law", "integer_sum"]

Law = Literal["skellam", "discrete_gaussian"]
"""The distribution of a client's noise."""
LAWS = ("skellam", "discrete_gaussian")

FINE = 16.0
FINE_MIN = 1024.0
COARSE = 6.0
"""The preferred and the smallest clip norm on the grid, divided by sqrt(dimension)."""
WRAP_BITS = 40
"""A value of a sum exceeds the modulus with a probability of at most 2^-40."""
STEPS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerSum:
    """The numbers of one noisy sum.

    Attributes:
        dimension: the number of values of the rotated vector.
        clients: the most clients in the sum.
        noisy: the fewest of them that add their noise and keep it secret.
        noise_multiplier: standard deviation of the noise of `noisy` clients / sensitivity.
        clip_scaled: the clip norm on the grid.
        law: the distribution of the noise.
    """

    dimension: int
    bits: int
    clients: int
    noisy: int
    noise_multiplier: float
    clip_scaled: float
    law: Law = "skellam"

    @property
    def norm_l2(self) -> float:
        """The sum's L2 sensitivity to one client."""
        return rounded_norm(self.clip_scaled, self.dimension)

    @property
    def norm_l1(self) -> float:
        """The sum's L1 sensitivity to one client."""
        return self.norm_l2 * min(math.sqrt(self.dimension), self.norm_l2)

    @property
    def variance(self) -> float:
        """The least variance of a value of the sum."""
        if self.law == "discrete_gaussian":
            return discrete_gaussian_variance(
                self.noise_multiplier,
                norm_l2=self.norm_l2,
                clients=self.noisy,
                dimension=self.dimension,
            )
        square = (self.noise_multiplier * self.norm_l2) ** 2
        return (square + math.sqrt(square * square + 4 * square)) / 2

    @property
    def client_variance(self) -> float:
        """The variance of one client's noise."""
        return self.variance / self.noisy

    @property
    def largest(self) -> float:
        """The bound that a value of a sum of all clients exceeds with probability <=
        2^-WRAP_BITS."""
        log_odds = WRAP_BITS * math.log(2) + math.log(4 * self.dimension)
        spread = self.clip_scaled * math.sqrt(2 * log_odds / self.dimension) + 1
        signal = self.clients * min(self.norm_l2, spread)
        tail = skellam_tail if self.law == "skellam" else discrete_gaussian_tail
        return signal + tail(self.clients * self.client_variance, log_odds)

    @property
    def fits(self) -> bool:
        """Whether sums stay within the modulus, and noise of this variance can be drawn."""
        within = self.largest < (1 << (self.bits - 1)) - 1
        return within and self.client_variance <= STDDEV_MAX**2

    def noise(self, count: int, words: Words) -> NDArray[np.int64]:
        """Return a client's noise for `count` values."""
        draw = skellam if self.law == "skellam" else discrete_gaussian
        return draw(self.client_variance, count, words)


@lru_cache(maxsize=64)
def integer_sum(
    *,
    dimension: int,
    bits: int,
    clients: int,
    noisy: int,
    noise_multiplier: float,
    law: Law = "skellam",
) -> IntegerSum:
    """Return the sum with the finest useful grid that fits.

    Raises:
        ConfigError: even the coarsest grid does not fit.
    """

    def of(clip_scaled: float) -> IntegerSum:
        return IntegerSum(
            dimension=dimension,
            bits=bits,
            clients=clients,
            noisy=noisy,
            noise_multiplier=noise_multiplier,
            clip_scaled=clip_scaled,
            law=law,
        )

    low = COARSE * math.sqrt(dimension)
    high = max(FINE_MIN, FINE * math.sqrt(dimension))
    if of(high).fits:
        return of(high)
    coarsest = of(low)
    if coarsest.client_variance > STDDEV_MAX**2:
        raise ConfigError(
            f"noise_multiplier = {noise_multiplier:g} needs, from each of {noisy} clients, noise "
            f"of standard deviation {math.sqrt(coarsest.client_variance):.3g}, and at most "
            f"{STDDEV_MAX:g} can be drawn; lower it, or raise run.cohort"
        )
    if not coarsest.fits:
        needed = math.ceil(math.log2(coarsest.largest + 2)) + 1
        raise ConfigError(
            f"sums of {clients} clients' {dimension} values with noise may reach "
            f"{coarsest.largest:.4g}, and {bits} bits hold less than {1 << (bits - 1)}; raise "
            f"privacy.secure_aggregation.bits to {needed}, or lower noise_multiplier"
        )
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle).fits else (low, middle)
    return of(low)
