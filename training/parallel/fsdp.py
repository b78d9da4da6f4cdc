"""The strategy "fsdp": every rank has a part of each param, and computes a part of each batch.

With several copies of the model, only the ranks of a copy gather its parts.

Source: Rajbhandari et al. 2020, "ZeRO", stage 3, as torch's fully_shard does it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard

from .copies import Copies
from .divided import Divided
from .parallelism import Autocast, LossOf
from .sharded_replica import ShardedReplica
from .sharded_tensors import clip_sharded
from .synchronous_norm import synchronise_norms

__all__ = ["Fsdp"]

SHARDED_PARAMS_MIN = 100_000
"""A block of fewer params is gathered together with what is around it."""


class Fsdp(Divided):
    """Params are gathered block by block for a pass; gradients are added up into their parts."""

    sharded = True

    def __init__(self, rank: int, ranks: int, device: str, *, copies: Copies) -> None:
        super().__init__(rank, ranks, device)
        self._copies = copies
        self._replica: ShardedReplica | None = None

    def attach(self, module: torch.nn.Module, autocast: Autocast) -> torch.nn.Module:
        """As `Parallelism.attach`."""
        self._autocast = autocast
        if self._replica is None or self._replica.whole is not module:
            self._replica = ShardedReplica(module, self._device, self._spread)
        self._replica.receive()
        return self._replica.module

    def _spread(self, module: torch.nn.Module) -> None:
        module.train()
        synchronise_norms(module, self)
        for block in module.children():
            if sum(param.numel() for param in block.parameters()) >= SHARDED_PARAMS_MIN:
                fully_shard(block, mesh=self._copies.mesh)
        fully_shard(module, mesh=self._copies.mesh)

    def backward(
        self, inputs: torch.Tensor, targets: torch.Tensor, loss: LossOf, *, live: bool, last: bool
    ) -> None:
        """As `Parallelism.backward`."""
        assert self._replica is not None
        module = self._replica.module
        assert isinstance(module, FSDPModule)
        self.live = live
        module.set_requires_gradient_sync(last)
        with self._autocast():
            outputs = self._replica.module(inputs)
        # fully_shard divides what it adds up by the number of ranks.
        torch.autograd.backward(loss(outputs, targets) * self.ranks)

    def clip(self, params: Sequence[torch.nn.Parameter], norm: float) -> None:
        """As `Parallelism.clip`."""
        clip_sharded(params, norm, within=self._copies.within)

    def collect(self) -> None:
        """As `Parallelism.collect`."""
        assert self._replica is not None
        self._replica.give_back()
