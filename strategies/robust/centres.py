"""Rules that weigh the updates: the mean, the geometric median, centred clipping and FLTrust.

Sources: Pillutla, Kakade, Harchaoui, "Robust aggregation for federated learning" (2022),
algorithm 2, the smoothed Weiszfeld iteration; Karimireddy, He, Jaggi, "Learning from history for
Byzantine robust optimization" (2021), algorithm 2; Cao, Fang, Liu, Gong, "FLTrust: Byzantine-robust
federated learning via trust bootstrapping" (2021), equations 2 to 4.

Every centre is a weighted sum of the rows; one starts at zero, the params that were sent.
"""

from __future__ import annotations

import numpy as np

from ...errors import RunError
from .geometry import Geometry, Mixing, Reals
from .mixing import shrinking

__all__ = ["centred_clipping", "fltrust", "geometric_median", "mean"]

SMOOTHING = 1e-6
"""Rows nearer than this to the geometric median weigh as if they were so far from it."""


def mean() -> Mixing:
    """Return the mean of the rows, each counting the same."""

    def mix(rows: Geometry) -> Reals:
        return np.full((1, rows.count), 1.0 / rows.count)

    return mix


def geometric_median(iterations: int, *, smoothing: float = SMOOTHING) -> Mixing:
    """Approach the point with the least sum of distances from the rows."""

    def mix(rows: Geometry) -> Reals:
        weights = np.zeros(rows.count)
        for _ in range(iterations):
            weights = 1.0 / np.maximum(distances_from(rows, weights), smoothing)
            weights /= weights.sum()
        return weights[None, :]

    return mix


def centred_clipping(iterations: int, *, norm_l2: float) -> Mixing:
    """Move the centre by the mean of the rows' differences from it, each clipped to a norm."""

    def mix(rows: Geometry) -> Reals:
        weights = np.zeros(rows.count)
        for _ in range(iterations):
            factors = shrinking(distances_from(rows, weights), norm_l2) / rows.count
            weights = weights * (1.0 - factors.sum()) + factors
        return weights[None, :]

    return mix


def fltrust(trusted: int) -> Mixing:
    """Scale the rows to the norm of a trusted client's, and weigh them by the angle to it.

    Edge cases: where nobody goes the trusted client's way, its own row is the result.
    Raises:
        RunError: the trusted client's update is not there.
    """

    def mix(rows: Geometry) -> Reals:
        if trusted not in rows.clients:
            raise RunError(
                f"fltrust needs the update of the trusted client {trusted}, and it is not among "
                f"the {rows.count} valid ones; raise run.cohort and run.deadline_s, or see why "
                "it failed"
            )
        root, norms = rows.clients.index(trusted), rows.norms()
        safe = np.maximum(norms, np.finfo(np.float64).tiny)
        trust = np.maximum(rows.products[root] / safe / safe[root], 0.0)
        trust[root] = 0.0
        if not trust.sum() > 0.0:
            return np.eye(rows.count)[root : root + 1]
        return np.asarray((trust / trust.sum() * norms[root] / safe)[None, :])

    return mix


def distances_from(rows: Geometry, weights: Reals) -> Reals:
    """Return the rows' distances from a weighted sum of them."""
    along = rows.products @ weights
    squares = np.diagonal(rows.products) - 2.0 * along + float(weights @ along)
    return np.sqrt(np.maximum(squares, 0.0))
