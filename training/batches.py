"""A site's data as batches, the same ones for the same seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import TYPE_CHECKING, cast

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from ..errors import DataError, NothingLearnedError
from ..randomness.seeds import derive, epoch_order

if TYPE_CHECKING:
    from ..task import Data

__all__ = ["Batch", "batches_of", "chosen_from", "first_order", "in_pool", "samples_in"]

Batch = tuple[torch.Tensor, torch.Tensor]

FEW = 4096
"""The order of so many samples is known before they are asked for."""
AT_ONCE_BYTES = 1 << 20
"""So much of a site's inputs, or targets, is brought into an epoch's order at once: it stays in a cache."""


def batches_of(
    data: Data,
    batch_size: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    order: torch.Tensor | None = None,
    skip: int = 0,
    share: Callable[[torch.Tensor], torch.Tensor] | None = None,
    processes: int = 0,
) -> Iterator[Batch]:
    """Yield (inputs, targets); with a seed in the epoch's random order, else in the data's own order.

    `order` is that of the epoch, if it is known already. The first `skip` batches are left out. Of a
    batch's places, in their order, only those that `share` returns are loaded. `processes` other
    processes prefetch the items of a Dataset.

    The last batch may be smaller. A DataLoader keeps its own batches and order; if it has
    generators of its own they are seeded from `seed` and `epoch`, so that they do not depend on
    how often they were used before.

    Raises:
        DataError: the data are empty, or not pairs of inputs and targets.
    """
    count = samples_in(data)
    if not count:
        raise NothingLearnedError("there are no samples; a site's data must not be empty")
    if isinstance(data, DataLoader):
        _reseed(data, seed, epoch)
        if share is not None:
            raise DataError(
                "a DataLoader makes its own batches, which cannot be divided among processes; "
                "give its Dataset instead"
            )
        yield from (_pair(batch) for batch in islice(data, skip, None))
        return
    if order is None or order.shape[0] != count:  # a Dataset may have grown
        order = _order(count, seed, epoch)
    if (pooled := in_pool(data)) is not None:
        (inputs, targets), places = pooled
        order = order if places is None else places[order]
        order = order if order.device == inputs.device else order.to(inputs.device)
        if share is None:
            ordered = _in_order(inputs, order, batch_size, skip)
            yield from zip(ordered, _in_order(targets, order, batch_size, skip), strict=True)
            return
        for chosen in map(share, torch.split(order, batch_size)[skip:]):
            yield inputs.index_select(0, chosen), targets.index_select(0, chosen)
        return
    samples = cast(Dataset[Batch], data)
    starts = range(skip * batch_size, count, batch_size)
    chosen_of = (order[start : start + batch_size] for start in starts)
    lists = [(some if share is None else share(some)).tolist() for some in chosen_of]
    if not processes:
        yield from (_pair(default_collate(_items(samples, some))) for some in lists)
        return
    # A generator of its own: the workers' seeds are not drawn from the training's random numbers.
    draws = torch.Generator().manual_seed(derive(seed or 0, epoch, "loader"))
    loader = DataLoader(samples, batch_sampler=lists, num_workers=processes, generator=draws)
    yield from (_pair(batch) for batch in loader)


def first_order(data: Data, seed: int) -> torch.Tensor | None:
    """Return the order of a few data in the first epoch; None of many, and of a DataLoader."""
    count = samples_in(data)
    return None if isinstance(data, DataLoader) or count > FEW else _order(count, seed, 0)


def chosen_from(data: Data, places: torch.Tensor) -> Batch:
    """Return the samples at these places, at least one, as one batch.

    Raises:
        DataError: the data are a DataLoader, which makes its own batches.
    """
    if isinstance(data, DataLoader):
        raise DataError(
            "a DataLoader makes its own batches, and these are drawn example by example; give its "
            "Dataset instead"
        )
    if (pooled := in_pool(data)) is not None:
        (inputs, targets), rows = pooled
        places = (places if rows is None else rows[places]).to(inputs.device)
        return inputs[places], targets[places]
    return _pair(default_collate(_items(cast(Dataset[Batch], data), places.tolist())))


def in_pool(data: Data) -> tuple[Batch, torch.Tensor | None] | None:
    """Return the tensors that `data` are rows of, and which rows (None: all of them).

    Shapes: the rows are (samples,), int64.
    Edge cases: None for data that are not tensors: a Dataset with code of its own, a DataLoader.
    """
    if isinstance(data, tuple):
        return data, None
    places = None
    if type(data) is Subset:
        places = torch.as_tensor(data.indices, dtype=torch.int64)
        data = data.dataset
    if type(data) is TensorDataset and len(data.tensors) == 2:
        return (data.tensors[0], data.tensors[1]), places
    return None


def samples_in(data: Data) -> int:
    """Return how many samples there are.

    Raises:
        DataError: the data are none of the kinds that a task may give, inputs and targets
            differ in number, or the data do not say their number.
    """
    if isinstance(data, tuple):
        return _samples_in_pair(data)
    samples = data.dataset if isinstance(data, DataLoader) else data
    if not isinstance(samples, Dataset | Sequence) or isinstance(samples, IterableDataset):
        raise DataError(
            "data must be a pair of tensors, a torch Dataset with __getitem__, or a DataLoader "
            f"of one, got {type(samples).__name__}"
        )
    try:
        return len(cast(Sized, samples))
    except (TypeError, NotImplementedError):
        kind = type(samples).__name__
        raise DataError(f"{kind} does not say how many samples it has (no __len__)") from None


def _has_rows(part: object) -> bool:
    return isinstance(part, torch.Tensor) and part.ndim > 0


def _samples_in_pair(data: tuple[torch.Tensor, ...]) -> int:
    if len(data) != 2 or not (_has_rows(data[0]) and _has_rows(data[1])):
        kinds = ", ".join(type(part).__name__ for part in data)
        raise DataError(f"a pair of tensors (inputs, targets) is needed, got ({kinds})")
    inputs, targets = data[0].shape[0], data[1].shape[0]  # a tensor's len() is slower
    if inputs != targets:
        raise DataError(f"there are {inputs} inputs but {targets} targets")
    return inputs


def _order(count: int, seed: int | None, epoch: int) -> torch.Tensor:
    if seed is None:
        return torch.arange(count)
    return torch.from_numpy(epoch_order(seed, count, epoch))


def _in_order(
    rows: torch.Tensor, order: torch.Tensor, batch_size: int, skip: int
) -> Iterable[torch.Tensor]:
    """Return the rows in an order, batch by batch; few bytes are brought into it at once.

    Batches cut by `unsafe_split` are not views of one another for autograd: what is changed in place in
    one is not taken for a change of the others. Rows that need gradients are not: each batch then has a
    graph of its own.
    """
    plain = rows.layout is torch.strided and not rows.requires_grad
    if plain and order.shape[0] * rows.nbytes <= AT_ONCE_BYTES * rows.shape[0]:
        return torch.unsafe_split(rows.index_select(0, order), batch_size)[skip:]
    return (rows.index_select(0, chosen) for chosen in torch.split(order, batch_size)[skip:])


def _items(samples: Dataset[Batch], places: list[int]) -> list[Batch]:
    several = getattr(samples, "__getitems__", None)  # as in torch's DataLoader
    return several(places) if callable(several) else [samples[place] for place in places]


def _reseed(loader: DataLoader[Batch], seed: int | None, epoch: int) -> None:
    if seed is None:
        return
    for place, owner in enumerate((loader, loader.sampler)):
        own = getattr(owner, "generator", None)
        if isinstance(own, torch.Generator):
            own.manual_seed(derive(seed, epoch, place))


def _pair(batch: object) -> Batch:
    if isinstance(batch, list | tuple) and len(batch) == 2:
        inputs, targets = batch
        if isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor):
            return inputs, targets
    raise DataError(
        f"a batch must be a pair of tensors (inputs, targets), got {type(batch).__name__}"
    )
