"""What pre-aggregations and most rules look at: the inner products of a round's updates.

Whatever they make of the updates is a few weighted sums of them, and the distances between those
follow from the inner products. So a model of a million params is read once for n^2 numbers, and
everything else is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Geometry", "Mixing", "Reals"]

Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The inner products of rows: shape (rows, rows).

    `clients` are the node ids of the rows, empty once rows are of several clients. `seed` is of
    what is random: the same for the same updates.
    """

    products: Reals
    clients: Sequence[int]
    seed: int

    @property
    def count(self) -> int:
        return len(self.products)

    def norms(self) -> Reals:
        """Return the L2 norm of every row."""
        return np.sqrt(np.maximum(np.diagonal(self.products), 0.0))

    def distances_squared(self) -> Reals:
        """Return the squared L2 distance of every row from every other."""
        squares = np.diagonal(self.products)
        distances = squares[:, None] + squares[None, :] - 2.0 * self.products
        np.maximum(distances, 0.0, out=distances)
        np.fill_diagonal(distances, 0.0)
        return distances

    def mixed(self, weights: Reals) -> Geometry:
        """Return the geometry of weighted sums of the rows, one a row of `weights`."""
        products = weights @ self.products @ weights.T
        kept = weights.shape[0] == self.count and not np.any(weights - np.diag(weights.diagonal()))
        return Geometry(
            products=(products + products.T) / 2.0,
            clients=self.clients if kept else (),
            seed=self.seed,
        )


Mixing = Callable[[Geometry], Reals]
"""Says which weighted sums of the rows come next: shape (rows after it, rows before it)."""
