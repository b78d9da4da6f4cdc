"""The strategy "tensor": every rank computes a part of each linear layer, and some heads of each
attention layer, on the whole batch.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3, the column-parallel layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from ...errors import DataError
from .attention import can_spread, spread_heads
from .parallelism import Autocast, LossOf
from .sharded_replica import ShardedReplica
from .sharded_tensors import clip_sharded

__all__ = ["Tensor"]


class Tensor:
    """Outputs of linear layers are computed in parts, and gathered."""

    part, parts, sharded = 0, 1, True

    def __init__(self, rank: int, ranks: int, device: str) -> None:
        self.rank, self.ranks = rank, ranks
        self._device = torch.device(device)
        self._mesh = init_device_mesh(self._device.type, (ranks,))
        self._replica: ShardedReplica | None = None

    def attach(self, module: torch.nn.Module, autocast: Autocast) -> torch.nn.Module:
        """As `Parallelism.attach`.

        Raises:
            DataError: the module has no layer that could be divided.
        """
        self._autocast = autocast
        if self._replica is None or self._replica.whole is not module:
            self._replica = ShardedReplica(module, self._device, self._spread)
        self._replica.receive()
        return self._replica.module

    def _spread(self, module: torch.nn.Module) -> None:
        module.train()
        attentions = {
            f"{name}.": layer
            for name, layer in module.named_modules()
            if isinstance(layer, torch.nn.MultiheadAttention)  # it uses its layers' params directly
        }
        divided = [layer for layer in attentions.values() if can_spread(layer, self.ranks)]
        plan = {
            name: ColwiseParallel(output_layouts=Replicate())
            for name, layer in module.named_modules()
            if type(layer) is torch.nn.Linear
            and layer.out_features >= self.ranks
            and not name.startswith(tuple(attentions))
        }
        if not plan and not divided:
            raise DataError(
                f"the model has no nn.Linear of {self.ranks} outputs or more, and no attention "
                f"layer whose heads {self.ranks} ranks can divide; device.parallel = "
                '"tensor" divides nothing else; say "ddp" or "fsdp"'
            )
        for layer in divided:
            spread_heads(layer, self._mesh)
        parallelize_module(module, self._mesh, plan)  # type: ignore[arg-type]

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
        assert self._replica is not None
        with self._autocast():
            outputs = self._replica.module(inputs)
        torch.autograd.backward(loss(outputs, targets))

    def totals(self, values: Sequence[float]) -> list[float]:
        """As `Parallelism.totals`: every rank has seen all examples."""
        return list(values)

    def clip(self, params: Sequence[torch.nn.Parameter], norm: float) -> None:
        """As `Parallelism.clip`."""
        clip_sharded(params, norm)

    def collect(self) -> None:
        """As `Parallelism.collect`."""
        assert self._replica is not None
        self._replica.give_back()
