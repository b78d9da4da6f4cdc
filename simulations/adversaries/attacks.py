"""What adversaries who know every honest update send instead of their own.

All of them send the same (but for `gaussian`). Shapes: `honest` is (clients, values), the honest
clients' deltas; the result is (values,).

Sources: Allen-Zhu, Ebrahimianghazani, Li, Alistarh, "Byzantine-resilient non-convex stochastic
gradient descent" (2021): sign flip; Xie, Koyejo, Gupta, "Fall of empires: breaking Byzantine-tolerant
SGD by inner product manipulation" (2020): IPM; Baruch, Baruch, Goldberg, "A little is enough:
circumventing defenses for distributed learning" (2019): ALIE; Shejwalkar, Houmansadr, "Manipulating
the Byzantine: optimizing model poisoning attacks and defenses for federated learning" (2021),
section IV: min-max and min-sum; Karimireddy, He, Jaggi, "Byzantine-robust learning on heterogeneous
datasets via bucketing" (2022): mimic. Sign flip, IPM, ALIE and mimic are as in ByzFL 0.0.11.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["ATTACKS", "STRENGTHS", "Attack"]

Reals = NDArray[np.float64]
Attack = Callable[[Reals, float, np.random.Generator], Reals]
"""(honest, strength, generator) -> what an adversary sends."""


def sign_flip(honest: Reals, strength: float, generator: np.random.Generator) -> Reals:
    """Send the honest mean, turned round."""
    return np.asarray(-honest.mean(axis=0))


def ipm(honest: Reals, strength: float, generator: np.random.Generator) -> Reals:
    """Send the honest mean, turned round and `strength` times as long."""
    return np.asarray(-strength * honest.mean(axis=0))


def alie(honest: Reals, strength: float, generator: np.random.Generator) -> Reals:
    """Send the honest mean plus `strength` standard deviations, value by value."""
    return np.asarray(honest.mean(axis=0) + strength * deviation(honest))


def min_max(honest: Reals, strength: float, generator: np.random.Generator) -> Reals:
    """Go against the standard deviation, but no further from anybody honest than two of them are
    from each other."""
    greatest = distances_squared(honest).max()
    mean, direction = honest.mean(axis=0), -deviation(honest)
    from_mean = mean - honest
    steps = largest_step(
        np.einsum("cv,cv->c", from_mean, from_mean) - greatest,
        from_mean @ direction,
        float(direction @ direction),
    )
    return np.asarray(mean + steps.min() * direction)


def min_sum(honest: Reals, strength: float, generator: np.random.Generator) -> Reals:
    """Likewise, with the sum of squared distances no larger than that of anybody honest."""
    greatest = distances_squared(honest).sum(axis=1).max()
    mean, direction = honest.mean(axis=0), -deviation(honest)
    from_mean = mean - honest
    step = largest_step(
        np.array([np.einsum("cv,cv->", from_mean, from_mean) - greatest]),
        np.array([from_mean.sum(axis=0) @ direction]),
        len(honest) * float(direction @ direction),
    )
    return np.asarray(mean + step[0] * direction)


def mimic(honest: Reals, strength: float, generator: np.random.Generator) -> Reals:
    """Send what the first honest client sends: it counts too much then."""
    return np.array(honest[0])


def gaussian(honest: Reals, strength: float, generator: np.random.Generator) -> Reals:
    """Send noise of standard deviation `strength`."""
    return np.asarray(strength * generator.standard_normal(honest.shape[1]))


ATTACKS: dict[str, Attack] = {
    "sign_flip": sign_flip,
    "ipm": ipm,
    "alie": alie,
    "min_max": min_max,
    "min_sum": min_sum,
    "mimic": mimic,
    "gaussian": gaussian,
}
STRENGTHS = {"ipm": 2.0, "alie": 1.5, "gaussian": 1.0}
"""The default."""


def deviation(honest: Reals) -> Reals:
    """Return the sample standard deviation of every value; zeros for one client."""
    if len(honest) < 2:
        return np.zeros(honest.shape[1])
    return np.asarray(honest.std(axis=0, ddof=1))


def distances_squared(honest: Reals) -> Reals:
    """Return the squared distance of every row from every other."""
    products = honest @ honest.T
    squares = products.diagonal()
    return np.asarray(np.maximum(squares[:, None] + squares[None, :] - 2.0 * products, 0.0))


def largest_step(constant: Reals, linear: Reals, square: float) -> Reals:
    """Return the largest t with constant + 2 t linear + t^2 square <= 0; 0 where there is none."""
    if square == 0.0:
        return np.zeros_like(constant)
    inside = np.maximum(linear**2 - square * constant, 0.0)
    return np.maximum((np.sqrt(inside) - linear) / square, 0.0)
