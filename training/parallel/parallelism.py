"""How the arithmetic of a step is laid out: on one process, or spread over several ranks.

A *rank* is one of the processes that train a module together; rank 0 is the training process that
communicates with the agent. The trainer is the same for all; only the `Parallelism` differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

__all__ = ["Alone", "Autocast", "LossOf", "Parallelism", "rows_of"]

Autocast = Callable[[], AbstractContextManager[object]]


class LossOf(Protocol):
    """The scalar whose gradient is wanted."""

    def __call__(
        self, outputs: torch.Tensor, targets: torch.Tensor, *, note: bool = True
    ) -> torch.Tensor:
        """Return it; with `note` the examples also count for loss and metrics."""

    def backward(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Add its gradient to the params' `.grad`, the same bits as by way of the scalar; the
        examples count."""


class Parallelism(Protocol):
    """One way of computing gradients.

    Attributes:
        rank: the number of this process among those that train together, from 0.
        ranks: how many processes train together.
        parts: in how many parts a batch is divided.
        part: which of them is this rank's.
        sharded: whether each rank holds a part of the params, rather than all of them.
    """

    rank: int
    ranks: int
    part: int
    parts: int
    sharded: bool

    def attach(self, module: torch.nn.Module, autocast: Autocast) -> torch.nn.Module:
        """Take the module of a round, and what its forward pass runs in; returns what is trained.

        Guarantees: all ranks then have rank 0's params and buffers, or their parts of them.
        """

    def share(self, places: torch.Tensor) -> torch.Tensor:
        """Return the places of a batch that this rank computes; if none, one that does not count."""

    def rows(self, count: int) -> int:
        """Return how many examples of a batch of `count` are this rank's."""

    def backward(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        loss: LossOf,
        *,
        live: bool,
        last: bool,
    ) -> None:
        """Add the gradient of a loss to the params' `.grad`.

        With `last` the gradients are then the sums over all ranks. The examples count only if
        `live`; else the rank passes them so that it takes part in every collective.
        """

    def totals(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all parts of the batches."""

    def clip(self, params: Sequence[torch.nn.Parameter], norm: float) -> None:
        """Scale the gradients so that their L2 norm, over all ranks, is `norm` at most."""

    def collect(self) -> None:
        """Put what was trained into the module that was attached, whole."""


class Alone:
    """One process, without other ranks."""

    rank, ranks, part, parts, sharded = 0, 1, 0, 1, False

    def attach(self, module: torch.nn.Module, autocast: Autocast) -> torch.nn.Module:
        """As `Parallelism.attach`."""
        self._module, self._autocast = module, autocast
        return module

    def share(self, places: torch.Tensor) -> torch.Tensor:
        """As `Parallelism.share`."""
        return places

    def rows(self, count: int) -> int:
        """As `Parallelism.rows`."""
        return count

    def backward(
        self, inputs: torch.Tensor, targets: torch.Tensor, loss: LossOf, *, live: bool, last: bool
    ) -> None:
        """As `Parallelism.backward`."""
        with self._autocast():
            outputs = self._module(inputs)
        loss.backward(outputs, targets)

    def totals(self, values: Sequence[float]) -> list[float]:
        """As `Parallelism.totals`."""
        return list(values)

    def clip(self, params: Sequence[torch.nn.Parameter], norm: float) -> None:
        """As `Parallelism.clip`."""
        torch.nn.utils.clip_grad_norm_(params, norm)

    def collect(self) -> None:
        """As `Parallelism.collect`."""


def rows_of(count: int, rank: int, ranks: int) -> range:
    """Return the rows of a batch of `count` that are a rank's.

    Guarantees: the ranges of all ranks are disjoint, cover the batch, and differ in length by
        one at most.
    """
    return range(count * rank // ranks, count * (rank + 1) // ranks)
