"""A site's data as batches, the same ones for the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, cast

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from .errors import DataError

if TYPE_CHECKING:
    from .task import Data

__all__ = ["Batch", "batches_of", "samples_in"]

Batch = tuple[torch.Tensor, torch.Tensor]


def batches_of(
    data: Data, batch_size: int, *, generator: torch.Generator | None = None
) -> Iterator[Batch]:
    """Yield (inputs, targets); with a generator in a random order, else as the data lie.

    The last batch may be smaller. A DataLoader's own batches and order are kept.

    Raises:
        DataError: the data are empty, or not pairs of inputs and targets.
    """
    if isinstance(data, DataLoader):
        yield from (_pair(batch) for batch in data)
        return
    count = samples_in(data)
    if not count:
        raise DataError("there are no samples; a site's data must not be empty")
    if generator is None:
        order = torch.arange(count)
    else:
        order = torch.randperm(count, generator=generator)
    for chosen in order.split(batch_size):
        if isinstance(data, tuple):
            yield data[0][chosen], data[1][chosen]
        else:
            items = [cast(Dataset[Batch], data)[int(index)] for index in chosen]
            yield _pair(default_collate(items))


def samples_in(data: Data) -> int:
    """Return how many samples there are.

    Raises:
        DataError: inputs and targets differ in number, or the data do not say their number.
    """
    if isinstance(data, tuple):
        if len(data) != 2 or len(data[0]) != len(data[1]):
            sizes = [len(part) for part in data]
            raise DataError(f"inputs and targets must be two of one length, got {sizes}")
        return len(data[0])
    sized = data.dataset if isinstance(data, DataLoader) else data
    try:
        return len(cast(Sized, sized))
    except TypeError:
        kind = type(sized).__name__
        raise DataError(f"{kind} does not say how many samples it has (no __len__)") from None


def _pair(batch: object) -> Batch:
    if isinstance(batch, list | tuple) and len(batch) == 2:
        inputs, targets = batch
        if isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor):
            return inputs, targets
    raise DataError(f"a batch must be a pair (inputs, targets) of tensors, got {type(batch)}")
