"""How the batches of a cohort's clients are cut: the same in every round of the same cohort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from ....machine.accelerators import widest_float

__all__ = ["BatchLayout", "Step", "layout_of"]

Indices = NDArray[np.int64]
Step = tuple[int, int, int, int]
"""(step, first client, clients, batch): what has been trained on in one go."""

KEPT_MAX = 8


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """How many samples each client's each batch has.

    Shapes: `sizes` (clients, steps), 0 after a client's last step; `own` and `weights` (clients,
        steps, batch): whether there is a sample, and what its loss counts in its step: the inverse
        of its batch's size, and 0 for padding; `active` (steps,): how many clients make a step,
        and `widths` (steps,): the largest of their batches, which others are padded to.
        Clients come in the order of their counts, the largest first: so those that still train
        are always the first ones. `positions` (clients, steps, batch): which sample it is, of a
        table (epochs, clients, largest count) of all clients' orders; for padding one of the
        client's own. `in_order` (rows,): those of the clients that train, step after step, as
        many of each client as the step is wide; `step_weights`: likewise their weights,
        (clients, width) for each step.
    """

    sizes: Indices
    own: torch.Tensor
    weights: torch.Tensor
    active: list[int]
    widths: list[int]
    positions: Indices
    in_order: Indices
    step_weights: list[torch.Tensor]
    _sources: dict[tuple[Step, ...], torch.Tensor] = field(default_factory=dict)

    def in_steps(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Cut what is given for `in_order` into steps: (clients * width, ...) each."""
        return list(
            torch.split(rows, [a * w for a, w in zip(self.active, self.widths, strict=True)])
        )

    def runs(self, step: int) -> list[tuple[int, int, int]]:
        """Return (low, high, size): neighbouring clients with batches of the same size."""
        sizes = self.sizes[: self.active[step], step]
        ends = [*(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(sizes)]
        starts = [0, *ends[:-1]]
        return [
            (low, high, int(sizes[low]))
            for low, high in zip(starts, ends, strict=True)
            if high > low
        ]

    def sums(self, steps: Sequence[Step], values: torch.Tensor) -> torch.Tensor:
        """Return each client's sums over its samples, in float64, one order for all.

        Shapes: `values` (kinds, samples): those of the steps one after another, padding
            included; the result is (kinds, clients).
        """
        key = tuple(steps)
        if key not in self._sources:
            self._sources.clear()
            self._sources[key] = self._sources_of(key)
        table = values.float().index_select(1, self._sources[key])
        table = table.where(self.own.flatten(), 0.0)
        return table.view(len(values), len(self.sizes), -1).sum(
            2, dtype=widest_float(values.device)
        )

    def _sources_of(self, steps: Sequence[Step]) -> torch.Tensor:
        """Return where among the values of these steps that of each place in `own` is, and 0
        where there is none."""
        numbers = torch.arange(self.own.numel(), device=self.own.device).view(self.own.shape)
        places = torch.cat(
            [numbers[low : low + rows, step, :batch].flatten() for step, low, rows, batch in steps]
        )
        sources = torch.zeros_like(numbers).flatten()
        sources[places] = numbers.flatten()[: len(places)]
        return sources


def layout_of(
    counts: Indices, *, batch_size: int, epochs: int, device: torch.device
) -> BatchLayout:
    """Return the layout for clients with these numbers of samples, the largest first."""
    return _layout(counts.astype(np.int64).tobytes(), batch_size, epochs, device)


@lru_cache(maxsize=KEPT_MAX)
def _layout(counts_: bytes, batch_size: int, epochs: int, device: torch.device) -> BatchLayout:
    counts = np.frombuffer(counts_, np.int64)
    batches = -(-counts // batch_size)
    most, width = int(batches.max()), min(batch_size, int(counts.max()))
    in_epoch = np.clip(counts[:, None] - np.arange(most) * batch_size, 0, width)
    places = np.arange(most)[:, None] * batch_size + np.arange(width)
    firsts = np.arange(len(counts))[:, None, None] * int(counts.max())
    numbers = firsts + np.where(places < counts[:, None, None], places, 0)
    sizes = np.zeros((len(counts), epochs * most), np.int64)
    positions = np.zeros((len(counts), epochs * most, width), np.int64)
    for count in set(batches.tolist()):  # clients with as many batches are in step
        alike = np.flatnonzero(batches == count)
        for epoch in range(epochs):
            steps = slice(epoch * count, (epoch + 1) * count)
            sizes[alike, steps] = in_epoch[alike, :count]
            positions[alike, steps] = numbers[alike, :count] + epoch * counts.max() * len(counts)
    own = torch.from_numpy(np.arange(width) < sizes[:, :, None]).to(device)
    weights = own.float() / own.sum(2, keepdim=True).clamp(min=1)
    active, widths = np.count_nonzero(sizes, axis=0).tolist(), sizes.max(axis=0).tolist()
    shapes = list(enumerate(zip(active, widths, strict=True)))
    in_order = [positions[:a, step, :w].reshape(-1) for step, (a, w) in shapes]
    return BatchLayout(
        sizes=sizes,
        own=own,
        weights=weights,
        active=active,
        widths=widths,
        positions=positions,
        in_order=np.concatenate(in_order),
        step_weights=[weights[:a, step, :w].contiguous() for step, (a, w) in shapes],
    )
