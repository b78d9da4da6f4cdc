"""The clipped deltas of clients that trained in one tensor, added up in float64.

Every delta is computed by itself, so that its norm is that of the numbers that are added. In a
matrix product over all clients, the rounding of one client's part depends on the other clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ....errors import DataError
from ....machine.accelerators import is_accelerator, widest_float
from ....privacy.dp.mechanisms.clipping import Clipping
from .example_values import Tensors, Trained
from .stacked_module import StackedModule

__all__ = ["ClippedSums", "require_exact_sums"]

EXACT_BYTES = 4
BLOCK_BYTES = 4 << 20
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

    def add(self, trained: Trained, good: Sequence[int]) -> list[bool | None]:
        """Add the deltas of the clients `good` (rows, in ascending order); returns for each
        whether it was within the clip norm; None if its norm is not finite: it adds nothing."""
        within: list[bool | None] = []
        while len(within) < len(good):
            low = good[len(within)]
            rows = [row - low for row in good[len(within) : len(within) + self._together]]
            rows = [row for row in rows if row < self._together]
            deltas = trained.each(low, low + rows[-1] + 1)
            within += self._add(deltas, None if len(rows) == rows[-1] + 1 else rows)
        return within

    def _add(self, deltas: Tensors, rows: list[int] | None) -> list[bool | None]:
        """Add up the deltas of these rows (None: of all); as `add`."""
        wide = {
            name: (each if rows is None else each[rows]).flatten(1).double()
            for name, each in deltas.items()
        }
        norms = torch.stack([torch.linalg.vector_norm(each, dim=1) for each in wide.values()])
        with np.errstate(over="ignore"):
            squares = dict(zip(wide, np.square(norms.cpu().numpy()), strict=True))
        sent = {name: squares[owner] for name, owner in self._owners.items() if owner in squares}
        finite = np.isfinite(sum(sent.values()))
        if not finite.all():
            sent = {name: each[finite] for name, each in sent.items()}
            known = torch.from_numpy(np.flatnonzero(finite)).to(norms.device)
            wide = {name: each[known] for name, each in wide.items()}
        factors = self._clipping.factors(sent)
        for owner, factor in {self._owners[name]: each for name, each in factors.items()}.items():
            delta = deltas[owner]
            counts = torch.from_numpy(factor).to(delta.device)
            added = (counts @ wide[owner]).view(delta.shape[1:])
            self._sums[owner] = self._sums[owner].add_(added) if owner in self._sums else added
        within: list[bool | None] = [None] * len(finite)
        every = np.logical_and.reduce([factor >= 1 for factor in factors.values()])
        for row, one in zip(np.flatnonzero(finite).tolist(), every.tolist(), strict=True):
            within[row] = one
        return within
