"""The strategy "data_parallel": one process that gives each accelerator some rows of a batch.

It is for machines on which processes cannot communicate; "ddp" is faster.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ...errors import DataError
from ...randomness.seeded import seeded_device
from .parallelism import Alone, Autocast, rows_of

__all__ = ["DataParallel"]


class DataParallel(Alone):
    """Copies the module to every accelerator for each pass; gradients are added up on the first."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = [torch.device(device) for device in devices]
        self._spread: _Spread | None = None

    def attach(self, module: torch.nn.Module, autocast: Autocast) -> torch.nn.Module:
        """As `Parallelism.attach`.

        Raises:
            DataError: the module has batch norms, which would see the rows of one device each.
        """
        if any(isinstance(layer, _BatchNorm) for layer in module.modules()):
            raise DataError(
                "a batch norm would see a part of each batch under device.parallel = "
                '"data_parallel", and give another model; say "ddp"'
            )
        if self._spread is None or self._spread.whole is not module:
            self._spread = _Spread(module, self._devices)
        super().attach(self._spread, autocast)
        return module


class _Spread(torch.nn.Module):
    """Computes some rows of a batch on each device; the outputs are on the first.

    Guarantees: the same bits every time: what other devices than the first draw depends on the
        CPU's generator, and their own are left as they were.
    """

    def __init__(self, module: torch.nn.Module, devices: Sequence[torch.device]) -> None:
        super().__init__()
        self.whole = module
        self._devices = devices
        self._copies = [copy.deepcopy(module).to("meta") for _ in devices[1:]]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs for all rows."""
        first, count = self._devices[0], len(self._devices)
        parts = [rows_of(len(inputs), part, count) for part in range(count)]
        seed = int(torch.randint(1 << 32, ()))
        outputs = [self.whole(inputs[: parts[0].stop])] if parts[0] else []
        for index, made in enumerate(self._copies, 1):
            if not parts[index]:
                continue
            device = self._devices[index]
            rows = inputs[parts[index].start : parts[index].stop]
            with torch.accelerator.device_index(device.index), seeded_device(seed + index, device):
                _follow(made, self.whole, device)
                outputs.append(made(rows.to(device)).to(first))
        return torch.cat(outputs)


def _follow(made: torch.nn.Module, whole: torch.nn.Module, device: torch.device) -> None:
    """Give a copy of a module the params of the whole one, through which gradients go back."""
    moved: dict[torch.Tensor, torch.Tensor] = {}
    for ours, theirs in zip(made.modules(), whole.modules(), strict=True):
        for name, tensor in [*theirs._parameters.items(), *theirs._buffers.items()]:
            if tensor is None:
                continue
            if tensor not in moved:
                moved[tensor] = tensor.to(device)
            held = ours._parameters if name in theirs._parameters else ours._buffers
            held[name] = moved[tensor]  # type: ignore[assignment]
