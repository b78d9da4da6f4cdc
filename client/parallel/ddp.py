"""The form "ddp": every rank has the whole module and computes a part of each batch.

Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from inspect import signature
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...errors import DataError
from .form import Autocast, LossOf, rows_of
from .synchronous_norm import synchronise_norms

__all__ = ["Ddp", "send_params", "totals"]


# The option's name since torch 2.13, and the one before.
_RENAMED = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
_LEAVE_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if _RENAMED else "broadcast_buffers": False,
}


class Ddp:
    """Gradients are added up over ranks in buckets, while the backward pass still runs."""

    sharded = False

    def __init__(self, rank: int, ranks: int, device: str) -> None:
        self.rank, self.ranks = rank, ranks
        self._device = torch.device(device)
        self._spread: DistributedDataParallel | None = None
        self._first = True
        self.live = True

    def attach(self, module: torch.nn.Module, autocast: Autocast) -> None:
        """As `Form.attach`; a module that comes again keeps its buckets."""
        self._autocast = autocast
        send_params(module)
        if self._spread is not None and self._spread.module is module:
            return
        if not any(param.requires_grad for param in module.parameters()):
            raise DataError('the model has no params to train; device.parallel = "ddp" needs some')
        synchronise_norms(module, self)
        self._first = True
        gpu = [self._device.index or 0] if self._device.type == "cuda" else None
        self._spread = DistributedDataParallel(
            module, device_ids=gpu, static_graph=True, init_sync=False, **_LEAVE_BUFFERS
        )

    def share(self, places: torch.Tensor) -> torch.Tensor:
        """As `Form.share`."""
        mine = rows_of(len(places), self.rank, self.ranks)
        return places[mine.start : mine.stop] if mine else places[:1]

    def rows(self, count: int) -> int:
        """As `Form.rows`."""
        return len(rows_of(count, self.rank, self.ranks))

    def backward(
        self, inputs: torch.Tensor, targets: torch.Tensor, loss: LossOf, *, live: bool, last: bool
    ) -> None:
        """As `Form.backward`."""
        assert self._spread is not None
        self.live = live
        # The first pass of all must add up, or the static graph is not known; it does no harm, as
        # the mean of equal gradients is that gradient.
        adding = last or self._first
        self._first = False
        with nullcontext() if adding else self._spread.no_sync():
            with self._autocast():
                outputs = self._spread(inputs)
            # DistributedDataParallel divides what it adds up by the number of ranks.
            torch.autograd.backward(loss(outputs, targets) * self.ranks)

    def totals(self, values: Sequence[float]) -> list[float]:
        """As `Form.totals`."""
        return totals(values, self._device)


def totals(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the sums over all ranks."""
    sums = torch.tensor(list(values), dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    return [float(value) for value in sums]


@torch.no_grad()
def send_params(module: torch.nn.Module) -> None:
    """Give all ranks rank 0's params and buffers."""
    tensors = [tensor.detach() for tensor in module.state_dict().values()]
    for work in [dist.broadcast(tensor, 0, async_op=True) for tensor in tensors]:
        work.wait()
