"""A site's data as batches, the same ones for the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import TYPE_CHECKING, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from .errors import DataError

if TYPE_CHECKING:
    from .task import Data

__all__ = ["Batch", "batches_of", "samples_in"]

Batch = tuple[torch.Tensor, torch.Tensor]


def batches_of(
    data: Data, batch_size: int, *, generator: torch.Generator | None = None
) -> Iterator[Batch]:
    """Yield (inputs, targets); with a generator in a random order, else as the data lie.

    The last batch may be smaller. A DataLoader keeps its own batches and order; if it has
    generators of its own they are seeded from `generator`, so that they do not depend on how
    often they were used before.

    Raises:
        DataError: the data are empty, or not pairs of inputs and targets.
    """
    count = samples_in(data)
    if not count:
        raise DataError("there are no samples; a site's data must not be empty")
    if isinstance(data, DataLoader):
        _reseed(data, generator)
        yield from (_pair(batch) for batch in data)
    elif isinstance(data, tuple):
        inputs, targets = data
        order = _order(count, generator).to(inputs.device)
        for start in range(0, count, batch_size):
            chosen = order[start : start + batch_size]
            yield inputs[chosen], targets[chosen]
    else:
        samples = cast(Dataset[Batch], data)
        places = _order(count, generator).tolist()
        for start in range(0, count, batch_size):
            items = [samples[place] for place in places[start : start + batch_size]]
            yield _pair(default_collate(items))


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


def _samples_in_pair(data: tuple[torch.Tensor, ...]) -> int:
    if len(data) != 2 or not all(isinstance(part, torch.Tensor) and part.ndim for part in data):
        kinds = ", ".join(type(part).__name__ for part in data)
        raise DataError(f"a pair of tensors (inputs, targets) is needed, got ({kinds})")
    if len(data[0]) != len(data[1]):
        raise DataError(f"there are {len(data[0])} inputs but {len(data[1])} targets")
    return len(data[0])


def _order(count: int, generator: torch.Generator | None) -> torch.Tensor:
    return torch.arange(count) if generator is None else torch.randperm(count, generator=generator)


def _reseed(loader: DataLoader[Batch], generator: torch.Generator | None) -> None:
    if generator is None:
        return
    for owner in (loader, loader.sampler):
        own = getattr(owner, "generator", None)
        if isinstance(own, torch.Generator):
            own.manual_seed(int(torch.randint(2**62, (), generator=generator)))


def _pair(batch: object) -> Batch:
    if isinstance(batch, list | tuple) and len(batch) == 2:
        inputs, targets = batch
        if isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor):
            return inputs, targets
    raise DataError(
        f"a batch must be a pair of tensors (inputs, targets), got {type(batch).__name__}"
    )
