"""The samples of many clients as rows of one pool of tensors, and the order of their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, default_collate

from ....errors import DataError
from ....machine.accelerators import widest_float
from ....randomness.seeded import seeded
from ....randomness.seeds import epoch_orders
from ..site_data import Samples, SiteSamples

__all__ = [
    "BatchLayout",
    "BatchPlan",
    "CohortData",
    "KnownCohort",
    "Loaded",
    "Step",
    "layout_of",
    "plan_batches",
]

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


Loaded = list[tuple[int, SiteSamples]]
"""Clients with their data, the ones with the most samples first."""


class KnownCohort:
    """Remembers one cohort, and forgets it for another.

    Samples that a client's own code makes are made anew each time.
    """

    def __init__(self) -> None:
        self._clients: Sequence[int] = ()
        self._loaded: Loaded = []
        self._laid: dict[tuple[int, ...], tuple[CohortData, list[int]]] = {}

    def find(self, clients: Sequence[int]) -> Loaded | None:
        """Return the data of exactly these clients, if they are remembered."""
        return self._loaded if self._clients and self._clients == tuple(clients) else None

    def remember(self, clients: Sequence[int], loaded: Loaded) -> None:
        """Take a cohort's data."""
        self._clients, self._loaded = tuple(clients), loaded
        self._laid = {}

    def lay(self, chunk: Loaded, *, device: torch.device, epochs: int) -> CohortData:
        """Return the training data of some of the cohort, side by side."""
        clients = tuple(client for client, _ in chunk)
        known, versions = self._laid.get(clients, (None, ()))
        if known is None or not (known.is_view or versions == _versions(chunk)):
            parts = [data.train for _, data in chunk]
            known = CohortData.of(parts, device=device, epochs=epochs, seeds=clients)
            size_bytes = known.inputs.nbytes + known.targets.nbytes
            if known.is_view or (size_bytes <= LAID_BYTES and not known.anew.any()):
                self._laid[clients] = known, _versions(chunk)
        return known


def _versions(chunk: Loaded) -> list[int]:
    """Return torch's count of what was written into each of the clients' tensors."""
    return [each._version for _, data in chunk for each in data.train.pool or ()]


Step = tuple[int, int, int, int]
"""(step, first client, clients, batch): what has been trained on in one go."""

KEPT_MAX = 8
LAID_BYTES = 64 << 20
"""Copies of a cohort's samples, side by side, are kept up to this size."""


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
