"""The samples of many clients as rows of one pool of tensors, and the order of their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, default_collate

from ...batches import in_pool, samples_in
from ...errors import DataError
from ...randomness import seeded
from ...seeds import epoch_orders

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["BatchPlan", "CohortData", "plan_batches"]

Indices = NDArray[np.int64]
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class CohortData:
    """Clients' samples.

    Shapes: `rows` (clients, largest count): which rows of the pool are a client's; what lies
        beyond its count is 0. Where a client's Dataset makes its samples `anew`, those of the next
        epoch are `counts` rows further.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    rows: Indices
    counts: Indices
    anew: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        parts: Sequence[Data],
        *,
        device: torch.device,
        epochs: int = 1,
        seeds: Sequence[int] | None = None,
    ) -> CohortData:
        """Lay the clients' data side by side; tensors that several are rows of are not copied.

        A Dataset with code of its own is asked for every sample, once an epoch, under the
        client's seed.
        Raises:
            DataError: the data cannot be laid side by side: samples of unequal shapes, or a
                DataLoader, which makes its own batches.
        """
        counts = np.array([samples_in(part) for part in parts], np.int64)
        pooled = [in_pool(part) for part in parts]
        anew = np.array([each is None for each in pooled])
        if not anew.any():
            first = pooled[0]
            assert first is not None
            if all(each[0][0] is first[0][0] and each[0][1] is first[0][1] for each in pooled):  # type: ignore[index]
                places = [each[1] for each in pooled]  # type: ignore[index]
                if all(rows is not None for rows in places):
                    return cls(
                        first[0][0].to(device),
                        first[0][1].to(device),
                        _padded([np.asarray(rows) for rows in places], counts),
                        counts,
                        anew,
                    )
        made = [
            _rows_of(each) if each is not None else _drawn(part, epochs, seeds[i] if seeds else 0)
            for i, (each, part) in enumerate(zip(pooled, parts, strict=True))
        ]
        lengths = [len(targets) for _, targets in made]
        offsets = np.cumsum([0, *lengths[:-1]])
        rows = [np.arange(start, start + n) for start, n in zip(offsets, counts, strict=True)]
        try:
            inputs = torch.cat([each[0] for each in made])
            targets = torch.cat([each[1] for each in made])
        except (RuntimeError, TypeError) as error:
            raise DataError(f"the clients' samples have unequal shapes ({error})") from None
        return cls(inputs.to(device), targets.to(device), _padded(rows, counts), counts, anew)

    def probe(self) -> torch.Tensor:
        """Return three inputs, as different as can be had."""
        places = torch.tensor([0, len(self.inputs) // 2, len(self.inputs) - 1])
        probe = self.inputs[places.to(self.inputs.device)]
        if torch.equal(probe[1], probe[2]) and probe.dtype.is_floating_point:
            probe[2] += 1
        return probe

    def epoch_rows(self, orders: Indices, epoch: int) -> Indices:
        """Return the rows of an epoch's samples in these orders (clients, largest count)."""
        chosen = np.take_along_axis(self.rows, orders, axis=1)
        if self.anew.any():
            chosen += (self.anew * self.counts * epoch)[:, None]
        return chosen


def _rows_of(pooled: tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor | None]) -> Pair:
    (inputs, targets), places = pooled
    return (inputs, targets) if places is None else (inputs[places], targets[places])


def _drawn(data: Data, epochs: int, seed: int) -> Pair:
    if isinstance(data, DataLoader):
        raise DataError("client_data gives a DataLoader, which makes its own batches")
    samples = cast(Dataset[Pair], data)
    with seeded(seed):
        items = [samples[place] for _ in range(epochs) for place in range(samples_in(data))]
    inputs, targets = default_collate(items)
    return inputs, targets


def _padded(rows: Sequence[Indices], counts: Indices) -> Indices:
    table = np.zeros((len(rows), int(counts.max(initial=0))), np.int64)
    table[np.arange(table.shape[1]) < counts[:, None]] = np.concatenate(rows)
    return table


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Which rows every client's every step trains on.

    Shapes: `rows` (clients, steps, batch), 0 where there is nothing; `sizes` (clients, steps):
        how many of the batch there are, 0 after a client's last step. Clients come in the order
        of their counts, the largest first: so those that still train are always the first ones.
    """

    rows: Indices
    sizes: Indices

    def active(self, step: int) -> int:
        """Return how many clients make this step."""
        return int(np.count_nonzero(self.sizes[:, step]))

    def runs(self, step: int) -> list[tuple[int, int, int]]:
        """Return (low, high, size): neighbouring clients with batches of the same size."""
        sizes = self.sizes[: self.active(step), step]
        ends = [*(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(sizes)]
        starts = [0, *ends[:-1]]
        return [
            (low, high, int(sizes[low]))
            for low, high in zip(starts, ends, strict=True)
            if high > low
        ]


def plan_batches(
    data: CohortData, seeds: NDArray[np.uint64], *, batch_size: int, epochs: int
) -> BatchPlan:
    """Cut each client's epochs into batches, as `batches_of` does for one client.

    Shapes: `seeds` (clients,) are the seeds of the clients' batch orders.
    """
    counts = data.counts
    batches = -(-counts // batch_size)
    clients, most = len(counts), int(batches.max())
    width = min(batch_size, int(counts.max()))
    rows = np.zeros((clients, epochs * most, width), np.int64)
    sizes = np.zeros((clients, epochs * most), np.int64)
    places = np.arange(most * batch_size)
    own = places < counts[:, None]
    in_epoch = own.reshape(clients, most, batch_size).sum(axis=2)
    for epoch in range(epochs):
        orders = epoch_orders(seeds, counts, epoch)
        orders *= own[:, : orders.shape[1]]
        chosen = np.zeros((clients, most * batch_size), np.int64)
        chosen[:, : orders.shape[1]] = data.epoch_rows(orders, epoch)
        shaped = chosen.reshape(clients, most, batch_size)[:, :, :width]
        for count in np.unique(batches):  # clients with as many batches are in step
            alike = np.flatnonzero(batches == count)
            steps = slice(epoch * count, (epoch + 1) * count)
            rows[alike, steps] = shaped[alike, :count]
            sizes[alike, steps] = in_epoch[alike, :count]
    return BatchPlan(rows, sizes)
