"""How ranks are arranged when several copies of a model train together, each on some of them.

The ranks of one copy are neighbours: rank = copy * size + place. A batch is divided among copies;
the ranks with the same place in each copy hold the same params, and add up their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

__all__ = ["Copies"]


class Copies:
    """A grid of ranks: copies by places.

    Attributes:
        count: how many copies there are; 1 without hybrid parallelism.
        size: over how many ranks each of them is spread.
        copy: this rank's copy.
        place: its place in it.
        within: the ranks of this copy.
        mesh: the grid, or its only row, as torch's sharding takes it.
    """

    def __init__(
        self, rank: int, ranks: int, device: torch.device, *, count: int = 1, timeout_s: float
    ) -> None:
        self.count, self.size = count, ranks // count
        self.copy, self.place = divmod(rank, self.size)
        if count == 1:
            self.mesh = init_device_mesh(device.type, (ranks,))
            self.within = self.mesh.get_group()
            return
        grid = torch.arange(ranks).view(count, self.size)
        # Not by init_device_mesh, whose groups would wait for a lost rank for half an hour.
        rows, columns = (
            dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
                lists, timeout=timedelta(seconds=timeout_s)
            )[0]
            for lists in (grid.tolist(), grid.T.tolist())
        )
        self.within, self._across = rows, columns
        names = ("copies", "places")
        self.mesh = DeviceMesh.from_group(
            [columns, rows], device.type, mesh=grid, mesh_dim_names=names
        )

    def rank_of(self, place: int) -> int:
        """Return this copy's rank with a place, among all ranks."""
        return self.copy * self.size + place

    @torch.no_grad()
    def add_up(self, params: Sequence[torch.nn.Parameter]) -> None:
        """Give the same params of all copies the sum of their gradients."""
        gradients = [param.grad for param in params if param.grad is not None]
        if self.count == 1 or not gradients:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self._across)
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, total in zip(gradients, torch.split(flat, sizes), strict=True):
            gradient.copy_(total.view_as(gradient))
