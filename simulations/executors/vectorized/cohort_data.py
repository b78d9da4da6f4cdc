"""The samples of many clients as rows of one pool of tensors, and the order of their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, default_collate

from ....errors import DataError
from ....randomness.seeded import seeded
from ....randomness.seeds import epoch_orders
from ..site_data import Samples
from .batch_layout import BatchLayout, layout_of

__all__ = ["BatchPlan", "CohortData", "plan_batches"]

Indices = NDArray[np.int64]
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class CohortData:
    """Clients' samples.

    Shapes: `rows` (clients, largest count): which rows of the pool are a client's; what lies
        beyond its count is 0. Where a client's Dataset makes its samples `anew`, those of the next
        epoch are `counts` rows further. `is_view`: whether the tensors are the clients' own, so
        that nothing is held by laying them out.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    rows: Indices
    counts: Indices
    anew: NDArray[np.bool_]
    is_view: bool

    @classmethod
    def of(
        cls,
        parts: Sequence[Samples],
        *,
        device: torch.device,
        epochs: int = 1,
        seeds: Sequence[int] | None = None,
    ) -> CohortData:
        """Lay the clients' data side by side; tensors that all are rows of are not copied.

        A Dataset with code of its own is asked for every sample, once an epoch, under the
        client's seed.
        Raises:
            DataError: the data cannot be laid side by side: samples of unequal shapes, or a
                DataLoader, which makes its own batches.
        """
        counts = np.array([part.count for part in parts], np.int64)
        anew = np.array([part.pool is None for part in parts])
        pool = _common_pool(parts)
        if pool is not None:
            own = [part.places for part in parts if part.places is not None]
            inputs, targets = pool[0].to(device), pool[1].to(device)
            is_view = inputs is pool[0] and targets is pool[1]
            return cls(inputs, targets, _padded(own, counts), counts, anew, is_view)
        made = [
            _rows_of(part, epochs, seeds[place] if seeds else 0) for place, part in enumerate(parts)
        ]
        starts = np.cumsum([0, *(targets.shape[0] for _, targets in made[:-1])])
        places = np.arange(int(counts.max(initial=0)))
        rows = np.where(places < counts[:, None], starts[:, None] + places, 0)
        try:
            inputs = torch.cat([each[0] for each in made])
            targets = torch.cat([each[1] for each in made])
        except (RuntimeError, TypeError) as error:
            raise DataError(f"the clients' samples have unequal shapes ({error})") from None
        inputs, targets = inputs.to(device), targets.to(device)
        return cls(inputs, targets, rows, counts, anew, False)

    def probe(self) -> Pair:
        """Return three samples, as different as can be had."""
        places = torch.tensor([0, len(self.inputs) // 2, len(self.inputs) - 1])
        places = places.to(self.inputs.device)
        return self.inputs[places], self.targets[places]

    def rows_of(self, orders: Indices) -> Indices:
        """Return the rows of the samples in these orders (epochs, clients, largest count)."""
        chosen = self.rows[np.arange(len(self.rows))[:, None], orders]
        if self.anew.any():
            epochs = np.arange(len(orders))[:, None]
            chosen += (epochs * self.anew * self.counts)[:, :, None]
        return chosen


def _common_pool(parts: Sequence[Samples]) -> Pair | None:
    """Return the tensors that all these data are rows of, if they are."""
    pool = parts[0].pool
    if pool is None or any(part.places is None for part in parts):
        return None
    inputs, targets = pool
    alike = all(
        part.pool is not None and part.pool[0] is inputs and part.pool[1] is targets
        for part in parts
    )
    return pool if alike else None


def _rows_of(part: Samples, epochs: int, seed: int) -> Pair:
    if part.pool is not None:
        inputs, targets = part.pool
        return part.pool if part.places is None else (inputs[part.places], targets[part.places])
    if isinstance(part.data, DataLoader):
        raise DataError("client_data gives a DataLoader, which makes its own batches")
    samples = cast(Dataset[Pair], part.data)
    with seeded(seed):
        items = [samples[place] for _ in range(epochs) for place in range(part.count)]
    inputs, targets = default_collate(items)
    return inputs, targets


def _padded(rows: Sequence[Indices], counts: Indices) -> Indices:
    table = np.zeros((len(rows), int(counts.max(initial=0))), np.int64)
    table[np.arange(table.shape[1]) < counts[:, None]] = np.concatenate(rows)
    return table


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Which samples every client's every step trains on.

    Shapes: `orders` (epochs, clients, largest count): each client's samples in their order, and
        what is beyond its count is of no meaning; `chosen`, likewise, which rows of the pool they
        are. The layout says which step takes what.
    """

    orders: Indices
    chosen: Indices
    layout: BatchLayout

    @property
    def places(self) -> Indices:
        """Each step's samples among the client's own: (clients, steps, batch)."""
        return self.orders.reshape(-1)[self.layout.positions]

    @property
    def rows(self) -> Indices:
        """Each step's rows of the pool: (clients, steps, batch)."""
        return self.chosen.reshape(-1)[self.layout.positions]

    @property
    def rows_in_order(self) -> Indices:
        """The rows of those that train, step after step: (rows,)."""
        return self.chosen.reshape(-1)[self.layout.in_order]


def plan_batches(
    data: CohortData, seeds: NDArray[np.uint64], *, batch_size: int, epochs: int
) -> BatchPlan:
    """Cut each client's epochs into batches, as `batches_of` does for one client.

    Shapes: `seeds` (clients,) are the seeds of the clients' batch orders.
    """
    counts = data.counts
    layout = layout_of(counts, batch_size=batch_size, epochs=epochs, device=data.inputs.device)
    orders = epoch_orders(seeds, counts, range(epochs))
    return BatchPlan(orders, data.rows_of(orders), layout)
