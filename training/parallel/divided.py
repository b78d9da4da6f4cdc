"""What the strategies share that divide a batch among ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import distributed as dist

from ...machine.accelerators import widest_float
from .parallelism import rows_of

__all__ = ["Divided", "send", "send_params"]


class Divided:
    """Every rank computes some rows of each batch."""

    def __init__(self, rank: int, ranks: int, device: str) -> None:
        self.rank, self.ranks = rank, ranks
        self.part, self.parts = rank, ranks
        self.live = True
        self._device = torch.device(device)

    def share(self, places: torch.Tensor) -> torch.Tensor:
        """As `Parallelism.share`."""
        mine = rows_of(len(places), self.part, self.parts)
        return places[mine.start : mine.stop] if mine else places[:1]

    def rows(self, count: int) -> int:
        """As `Parallelism.rows`."""
        return len(rows_of(count, self.part, self.parts))

    def totals(self, values: Sequence[float]) -> list[float]:
        """As `Parallelism.totals`."""
        sums = torch.tensor(list(values), dtype=widest_float(self._device), device=self._device)
        dist.all_reduce(sums)
        return [float(value) for value in sums]

    @torch.no_grad()
    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """Put the sums over all ranks into tensors of one dtype."""
        row = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(row)
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, torch.split(row, sizes), strict=True):
            tensor.copy_(total.view_as(tensor))


@torch.no_grad()
def send_params(module: torch.nn.Module) -> None:
    """Give all ranks rank 0's params and buffers."""
    send(tensor.detach() for tensor in module.state_dict().values())


def send(tensors: Iterable[torch.Tensor]) -> None:
    """Give all ranks rank 0's values of tensors that each of them has."""
    for work in [dist.broadcast(tensor, 0, async_op=True) for tensor in tensors]:
        work.wait()
