"""The strategy "ddp": every rank has the whole module and computes a part of each batch.

Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from inspect import signature
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ...errors import DataError
from ...machine.accelerators import is_accelerator
from .divided import Divided, send_params
from .parallelism import Autocast, LossOf
from .shared_sums import TOTALS_MAX, SharedSums
from .synchronous_norm import synchronise_norms

__all__ = ["Ddp"]


# The option's name since torch 2.13, and the one before.
_RENAMED = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
_LEAVE_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if _RENAMED else "broadcast_buffers": False,
}


class Ddp(Divided):
    """Gradients are added up over ranks: on accelerators in buckets, while the backward pass still
    runs, and on the CPU in shared memory, once it is over."""

    sharded = False

    def __init__(
        self, rank: int, ranks: int, device: str, *, timeout_s: float, one_memory: bool = True
    ) -> None:
        """`timeout_s` is how long a rank waits for another; `one_memory` says that all of them are
        on one machine."""
        super().__init__(rank, ranks, device)
        self._one_memory = one_memory
        self._timeout_s = timeout_s
        self._spread: DistributedDataParallel | None = None
        self._sums: SharedSums | None = None
        self._attached: torch.nn.Module | None = None
        self._first = True

    def attach(self, module: torch.nn.Module, autocast: Autocast) -> torch.nn.Module:
        """As `Parallelism.attach`; a module that comes again keeps its buckets."""
        self._autocast = autocast
        send_params(module)
        if self._attached is module:
            return module
        params = [param for param in module.parameters() if param.requires_grad]
        if not params:
            raise DataError('the model has no params to train; device.parallel = "ddp" needs some')
        self._attached = module
        synchronise_norms(module, self)
        self._first = True
        if self._device.type == "cpu" and self._one_memory:
            self._sums = SharedSums.meet(params, self.rank, self.ranks, timeout_s=self._timeout_s)
        if self._sums is None:
            self._spread = self._in_buckets(module)
        return module

    def _in_buckets(self, module: torch.nn.Module) -> DistributedDataParallel:
        here = [self._device] if is_accelerator(self._device) else None
        return DistributedDataParallel(
            module, device_ids=here, static_graph=True, init_sync=False, **_LEAVE_BUFFERS
        )

    def backward(
        self, inputs: torch.Tensor, targets: torch.Tensor, loss: LossOf, *, live: bool, last: bool
    ) -> None:
        """As `Parallelism.backward`."""
        self.live = live
        if self._sums is not None:
            assert self._attached is not None
            with self._autocast():
                outputs = self._attached(inputs)
            torch.autograd.backward(loss(outputs, targets))
            if last:
                self._sums.add_up()
            return
        assert self._spread is not None
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
        """As `Parallelism.totals`."""
        if self._sums is None or len(values) > TOTALS_MAX:
            return super().totals(values)
        return self._sums.totals(values)

    def clip(self, params: Sequence[torch.nn.Parameter], norm: float) -> None:
        """As `Parallelism.clip`."""
        torch.nn.utils.clip_grad_norm_(params, norm)

    def collect(self) -> None:
        """As `Parallelism.collect`."""
