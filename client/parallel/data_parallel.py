"""The form "data_parallel": one process whose threads give each GPU some rows of a batch.

It is here for machines on which processes cannot speak with each other; "ddp" is faster.

Source: torch.nn.DataParallel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ...errors import DataError
from .form import Alone, Autocast

__all__ = ["DataParallel"]


class DataParallel(Alone):
    """Copies the module to every GPU for each pass; gradients are added up on the first."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._gpus = [torch.device(device).index for device in devices]
        self._spread: tuple[torch.nn.Module, torch.nn.Module] | None = None

    def attach(self, module: torch.nn.Module, autocast: Autocast) -> torch.nn.Module:
        """As `Form.attach`.

        Raises:
            DataError: the module has batch norms, which would see the rows of one GPU each.
        """
        if any(isinstance(layer, _BatchNorm) for layer in module.modules()):
            raise DataError(
                "a batch norm would see a part of each batch under device.parallel = "
                '"data_parallel", and give another model; say "ddp"'
            )
        if self._spread is None or self._spread[0] is not module:
            self._spread = module, torch.nn.DataParallel(module, device_ids=self._gpus)
        super().attach(self._spread[1], autocast)
        return module
