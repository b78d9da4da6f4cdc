"""The clipped deltas of clients that trained in one tensor, added up in float64.

Every delta is computed by itself, so that its norm is that of the numbers that are added. In a
matrix product over all clients, the rounding of one client's part depends on the other clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ....errors import DataError, UpdateError
from ....machine.accelerators import is_accelerator, widest_float
from ....privacy.dp.mechanisms.clipping import Clipping
from .example_values import Tensors, Trained
from .stacked_module import StackedModule

__all__ = ["ClippedSums", "require_exact_sums"]

Within = NDArray[np.float64]
"""For each client 1 if its delta was within the clip norm, 0 if it was clipped, and NaN if its norm is
not finite."""
EXACT_BYTES = 4
BLOCK_BYTES = 8 << 20
"""Bytes of deltas that are in float64 at once: they stay in a processor's cache."""
ACCELERATOR_BYTES = 256 << 20
"""On an accelerator few kernels count for more than its cache."""


def require_exact_sums(stacked: StackedModule) -> None:
    """Check that clipped deltas of this module's clients can be added up in one tensor.

    Raises:
        DataError: the params are of less than 32 bits, or the device has no float64: clients have
            to be added up one by one.
    """
    if any(each.element_size() < EXACT_BYTES for each in stacked.trained.values()):
        raise DataError(
            "params of less than 32 bits round a cohort's sum by more than privacy allows"
        )
    if widest_float(stacked.probe.device) != torch.float64:
        raise DataError(
            f"the device {stacked.probe.device} has no float64: it rounds a cohort's sum by more "
            "than privacy allows"
        )


class ClippedSums:
    """Adds a cohort's clipped deltas to `sums`.

    A param that the model has under two names counts under each, as it is sent.

    Guarantees: a client's part of the sums has a norm of at most the clip norm, and the other
        clients affect it by no more than the rounding of float64 sums.
    """

    def __init__(self, clipping: Clipping, stacked: StackedModule, sums: Tensors) -> None:
        self._clipping, self._owners, self._sums = clipping, stacked.owners, sums
        held = [*stacked.trained.values(), *stacked.buffers.values()]
        room = ACCELERATOR_BYTES if is_accelerator(stacked.probe.device) else BLOCK_BYTES
        self._together = max(1, room // (8 * max(1, sum(each.numel() for each in held))))

    def add(self, trained: Trained, good: Sequence[int]) -> Within:
        """Add the deltas of the clients `good` (rows, in ascending order), and return which were
        within the clip norm; one whose norm is not finite adds nothing."""
        found: list[Within] = []
        done = 0
        while done < len(good):
            low = good[done]
            rows = np.array(good[done : done + self._together]) - low
            rows = rows[rows < self._together]
            count = int(rows[-1]) + 1
            deltas = trained.each(low, low + count)
            found.append(self._add(deltas, None if len(rows) == count else rows))
            done += len(rows)
        return np.concatenate(found) if found else np.empty(0)

    def _add(self, deltas: Tensors, rows: NDArray[np.int64] | None) -> Within:
        """Add up the deltas of these rows (None: of all); as `add`."""
        wide = {
            name: (each if rows is None else each[_on(each, rows)]).flatten(1).double()
            for name, each in deltas.items()
        }
        squares = {name: _squares(each) for name, each in wide.items()}
        sent = {name: squares[owner] for name, owner in self._owners.items() if owner in squares}
        known: NDArray[np.bool_] | None = None
        try:
            factors = self._clipping.factors(sent)
        except UpdateError:  # of one of them: the others count
            known = np.isfinite(sum(sent.values()))
            factors = self._clipping.factors({name: each[known] for name, each in sent.items()})
            wide = {name: each[_on(each, known)] for name, each in wide.items()}
        for owner, factor in {self._owners[name]: each for name, each in factors.items()}.items():
            added = _weighted_sum(wide[owner], factor).view(deltas[owner].shape[1:])
            self._sums[owner] = self._sums[owner].add_(added) if owner in self._sums else added
        counted = np.where(reduce(np.minimum, factors.values()) < 1, 0.0, 1.0)
        if known is None:
            return counted
        within = np.full(len(known), np.nan)
        within[known] = counted
        return within


def _on(rows: torch.Tensor, chosen: NDArray[Any]) -> torch.Tensor:
    """Return which rows are chosen, by number or by truth, on the device of the rows."""
    return torch.from_numpy(chosen).to(rows.device)


def _squares(rows: torch.Tensor) -> NDArray[np.float64]:
    """Return the squared norm of each row of float64; infinite if no float64 is large enough.

    On a CPU by numpy's matrix library, which takes half of the time that torch takes.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if is_accelerator(rows.device):
            norms: NDArray[np.float64] = torch.linalg.vector_norm(rows, dim=1).cpu().numpy()
            return np.square(norms)
        values = rows.numpy()
        squares: NDArray[np.float64] = np.vecdot(values, values)
        return squares


def _weighted_sum(rows: torch.Tensor, weights: NDArray[np.float64]) -> torch.Tensor:
    """Return the sum of rows of float64, each times its weight; likewise."""
    if is_accelerator(rows.device):
        return torch.from_numpy(weights).to(rows.device) @ rows
    return torch.from_numpy(weights @ rows.numpy())
