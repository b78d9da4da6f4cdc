"""Clipping a cohort that was trained in one tensor: each client's change, before they are added up.

A client's change is never made for that: it is weighted, in the sum, with what clipping multiplies
it by. So privacy costs a norm a client, and no copy of anything.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ....errors import DataError
from ....privacy.dp.mechanisms.clipping import WITHIN_KEY, Clipping
from .example_values import Trained, Weights
from .stacked_module import StackedModule

__all__ = ["ClippedCohort"]

EXACT_BYTES = 4


class ClippedCohort:
    """What every client of a trained cohort counts in the sum of changes.

    A param that the model has under two names counts under each, as it is sent.

    Guarantees: within the rounding of float32, no change is larger than the clip.
    Raises:
        DataError: the params are of less than 32 bits: clients have to be added up one by one.
    """

    def __init__(self, stacked: StackedModule, trained: Trained, clipping: Clipping) -> None:
        if any(each.element_size() < EXACT_BYTES for each in stacked.trained.values()):
            raise DataError(
                "params of less than 32 bits round a cohort's sum by more than privacy allows"
            )
        self._owners, self._clipping = stacked.owners, clipping
        own = {name: squares.cpu().numpy() for name, squares in trained.squares().items()}
        self._sent = {name: own[owner] for name, owner in stacked.owners.items() if owner in own}
        self.finite = np.isfinite(sum(self._sent.values()))
        """Whose change has a norm."""

    def factors(self, good: list[int]) -> tuple[Weights, dict[str, Sequence[float | None]]]:
        """Return what the changes of the clients `good` count, and what they report beside."""
        every = len(good) == len(self.finite)
        sent = self._sent if every else {name: each[good] for name, each in self._sent.items()}
        factors = self._clipping.factors(sent)
        by_owner = {
            self._owners[name]: torch.from_numpy(factor.astype(np.float32))
            for name, factor in factors.items()
        }
        nothing = torch.zeros(len(good))
        columns: dict[str, Sequence[float | None]] = {}
        if self._clipping.kind == "adaptive":
            within = np.logical_and.reduce([factor >= 1 for factor in factors.values()])
            columns[WITHIN_KEY] = within.astype(float).tolist()
        return lambda name: by_owner.get(name, nothing), columns
