"""A module's copy whose params are spread over ranks; the module itself stays whole.

The whole module is on the CPU. Params enter and leave through it tensor by tensor, so that no
device ever holds all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import distributed as dist

from .sharded_tensors import local_of, whole_of

__all__ = ["ShardedReplica"]


class ShardedReplica:
    """The spread copy of one module, kept from round to round."""

    def __init__(
        self,
        module: torch.nn.Module,
        device: torch.device,
        spread: Callable[[torch.nn.Module], None],
    ) -> None:
        self.whole = module
        self._device = device
        self.module = copy.deepcopy(module).to(device)
        spread(self.module)

    @torch.no_grad()
    def receive(self) -> None:
        """Give all ranks their parts of rank 0's params, and all of its buffers."""
        spread = self.module.state_dict()
        for name, tensor in self.whole.state_dict().items():
            target = spread[name]
            whole = tensor.detach().to(self._device)
            dist.broadcast(whole, 0)
            whole = whole.view(target.shape)  # heads are spread with another shape
            mesh = getattr(target, "device_mesh", None)
            if mesh is None:
                target.copy_(whole)
                continue
            from torch.distributed.tensor import distribute_tensor

            placed = distribute_tensor(whole, mesh, target.placements)
            local_of(target).copy_(local_of(placed))
        self.module.zero_grad()

    @torch.no_grad()
    def give_back(self) -> None:
        """Gather what was trained into the whole module."""
        targets = self.whole.state_dict()
        for name, tensor in self.module.state_dict().items():
            targets[name].copy_(whole_of(tensor.detach()).view_as(targets[name]))
