"""The strategy "pipeline": every rank has some of a model's layers, and sends on their outputs.

With several copies of the model each of them is a pipeline for some rows of each batch.

Source: Huang et al. 2019, "GPipe"; Narayanan et al. 2019, "PipeDream" (one forward, one backward),
    as torch's pipelining.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from ...machine.accelerators import widest_float
from .copies import Copies
from .divided import Divided, send_params
from .parallelism import Autocast, LossOf
from .stages import Stages, cut, sequence_of

__all__ = ["Pipeline"]

MICRO_BATCHES_A_RANK = 4
SHAPES_KEPT_MAX = 16


class Pipeline(Divided):
    """A batch goes through the ranks in micro-batches, so that all of them are busy."""

    sharded = True

    def __init__(
        self,
        rank: int,
        ranks: int,
        device: str,
        *,
        copies: Copies,
        schedule: str,
        stages: Stages | None = None,
    ) -> None:
        super().__init__(rank, ranks, device)
        self._copies, self._wanted, self._stages = copies, schedule, stages
        self.part, self.parts = copies.copy, copies.count  # all ranks of a copy are given its rows
        self._whole: torch.nn.Module | None = None
        self._sequence: list[torch.nn.Module] = []
        self._schedules: dict[Any, PipelineScheduleSingle] = {}
        self._loss: LossOf | None = None

    def attach(self, module: torch.nn.Module, autocast: Autocast) -> torch.nn.Module:
        """As `Parallelism.attach`; returns this rank's layers.

        Raises:
            DataError: the module is not a sequence of layers that can be cut.
        """
        self._autocast = autocast
        send_params(module)
        if self._whole is not module:
            self._sequence = sequence_of(module, self._stages, ranks=self._copies.size)
            self._cuts = cut([_params_in(layer) for layer in self._sequence], self._copies.size)
            self._whole = module
            self._schedules.clear()
            self._stage = torch.nn.Sequential(*self._layers(self._copies.place)).to(self._device)
        return self._stage

    def _layers(self, place: int) -> list[torch.nn.Module]:
        return self._sequence[self._cuts[place] : self._cuts[place + 1]]

    def backward(
        self, inputs: torch.Tensor, targets: torch.Tensor, loss: LossOf, *, live: bool, last: bool
    ) -> None:
        """As `Parallelism.backward`; all micro-batches have one size, and the remainder is a batch of its own."""
        self._loss = loss
        size = -(-len(targets) // (MICRO_BATCHES_A_RANK * self._copies.size))
        main = len(targets) // size * size
        for rows in (slice(0, main), slice(main, None)):
            if len(targets[rows]):
                self._pass(inputs[rows], targets[rows], min(size, len(targets[rows])))
        if last:
            self._copies.add_up(list(self._stage.parameters()))

    def _pass(self, inputs: torch.Tensor, targets: torch.Tensor, size: int) -> None:
        schedule = self._schedule(inputs, targets, len(targets) // size)
        with self._autocast():
            if self._copies.place == 0:
                schedule.step(inputs)
            elif self._copies.place < self._copies.size - 1:
                schedule.step()
            else:
                outputs = schedule.step(target=targets, losses=[])
        if self._copies.place == self._copies.size - 1:
            assert self._loss is not None
            with torch.no_grad():
                self._loss(outputs, targets)

    def _schedule(
        self, inputs: torch.Tensor, targets: torch.Tensor, count: int
    ) -> PipelineScheduleSingle:
        """Return the schedule for batches of this shape; one forward, one backward needs
        micro-batches for all ranks, and is GPipe where there are fewer."""
        shape = inputs.shape, inputs.dtype, targets.shape, count
        if shape not in self._schedules:
            if len(self._schedules) >= SHAPES_KEPT_MAX:
                self._schedules.clear()
            stage = PipelineStage(
                self._stage,
                self._copies.place,
                self._copies.size,
                self._device,
                group=self._copies.within,
            )
            alternating = self._wanted == "1f1b" and count >= self._copies.size
            kind = Schedule1F1B if alternating else ScheduleGPipe
            made = kind(stage, count, loss_fn=self._quiet_loss, scale_grads=False)
            self._schedules[shape] = made
        return self._schedules[shape]

    def _quiet_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        assert self._loss is not None
        return self._loss(outputs, targets, note=False)  # torch also tries it out

    @torch.no_grad()
    def clip(self, params: Sequence[torch.nn.Parameter], norm: float) -> None:
        """As `Parallelism.clip`: every rank has other params."""
        gradients = [param.grad for param in params if param.grad is not None]
        squares = torch.zeros((), dtype=widest_float(self._device), device=self._device)
        for gradient in gradients:
            squares += gradient.to(squares.dtype).pow(2).sum()
        dist.all_reduce(squares, group=self._copies.within)
        for gradient in gradients:
            gradient.mul_(min(1.0, norm / (float(squares) ** 0.5 + 1e-6)))

    @torch.no_grad()
    def collect(self) -> None:
        """As `Parallelism.collect`."""
        for place in range(self._copies.size):
            rank = self._copies.rank_of(place)
            for layer in self._layers(place):
                for tensor in layer.state_dict().values():
                    dist.broadcast(tensor.detach(), rank, group=self._copies.within)


def _params_in(layer: torch.nn.Module) -> int:
    return sum(param.numel() for param in layer.parameters())
