"""Pre-aggregations: what is done to the updates before a rule sees them.

Sources: Sun, Kairouz, Suresh, McMahan, "Can you really backdoor federated learning?" (2019):
norm bounding, which is `clipping` and the mean; Allouah, Guerraoui, Gupta, Jellouli, Rizk,
Stephan, "Adaptive gradient clipping for robust federated learning" (2025): `adaptive_clipping`;
Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by mixing: a recipe for optimal
Byzantine ML under heterogeneity" (2023), algorithm 2: `nearest_neighbour_mixing`; Karimireddy,
He, Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing" (2022), algorithm 1.
"""

from __future__ import annotations

import numpy as np

from .geometry import Geometry, Mixing, Reals

__all__ = ["adaptive_clipping", "bucketing", "clipping", "nearest_neighbour_mixing"]


def clipping(norm_l2: float) -> Mixing:
    """Scale every row down to a norm; shorter ones stay."""

    def mix(rows: Geometry) -> Reals:
        return np.diag(shrinking(rows.norms(), norm_l2))

    return mix


def adaptive_clipping(byzantine: int) -> Mixing:
    """Scale the longest rows down to the longest of the others.

    Of n rows, floor(2 f (n - f) / n) are scaled.
    """

    def mix(rows: Geometry) -> Reals:
        norms, n = rows.norms(), rows.count
        clipped = int(2 * byzantine / n * (n - byzantine))
        limit = np.sort(norms)[n - clipped - 1]
        return np.diag(shrinking(norms, float(limit)))

    return mix


def nearest_neighbour_mixing(byzantine: int) -> Mixing:
    """Replace every row by the mean of the n - f rows next to it, itself among them."""

    def mix(rows: Geometry) -> Reals:
        kept = rows.count - byzantine
        nearest = np.argsort(rows.distances_squared(), axis=1, kind="stable")[:, :kept]
        weights = np.zeros((rows.count, rows.count))
        np.put_along_axis(weights, nearest, 1.0 / kept, axis=1)
        return weights

    return mix


def bucketing(size: int) -> Mixing:
    """Replace every `size` rows, drawn at random, by their mean; the last bucket may be smaller.

    Guarantees: the draw depends on the updates alone, so that a round that is repeated draws
        the same.
    """

    def mix(rows: Geometry) -> Reals:
        order = np.random.default_rng(rows.seed).permutation(rows.count)
        buckets = [order[start : start + size] for start in range(0, rows.count, size)]
        weights = np.zeros((len(buckets), rows.count))
        for row, bucket in zip(weights, buckets, strict=True):
            row[bucket] = 1.0 / len(bucket)
        return weights

    return mix


def shrinking(norms: Reals, limit: float) -> Reals:
    """Return the factors that scale norms down to a limit."""
    return np.minimum(1.0, limit / np.maximum(norms, np.finfo(np.float64).tiny))
