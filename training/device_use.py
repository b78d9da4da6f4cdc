"""How a module and its batches use a device: the settings of [device]."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..config.sections.device import DeviceConfig
from ..errors import DataError
from ..machine.accelerators import accelerators, is_accelerator
from .batches import Batch
from .recomputation import recompute

__all__ = ["DeviceUse", "choose_device"]

WHOLE = ("none", "data_parallel", "ddp")
"""The parallelism strategies whose ranks have the whole module, as it was built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """Settings that trade time for memory, or choose a memory layout.

    Attributes:
        checkpoint_activations: whether blocks are computed again in the backward pass.
        channels_last: whether images lie in memory with their channels together.
        compile: whether torch compiles the module.
        loader_processes: how many processes load a Dataset's items; 0: the training process.
        pin_memory: whether batches are copied to the accelerator from pinned memory, beside its
            work.
    """

    checkpoint_activations: bool = False
    channels_last: bool = False
    compile: bool = False
    loader_processes: int = 0
    pin_memory: bool = False

    @classmethod
    def of(cls, config: DeviceConfig, *, kind: str, device: str) -> DeviceUse:
        """Return the owner's settings under a parallelism strategy.

        Raises:
            DataError: the parallelism strategy or the device does not support one.
        """
        for key in ("channels_last", "compile"):
            if getattr(config, key) and kind not in WHOLE:
                raise DataError(
                    f"device.{key} needs the whole model on each device, and "
                    f'device.parallel = "{config.parallel}" gives each a part; remove one of them'
                )
        if config.pin_memory and not is_accelerator(device):
            raise DataError(
                f"device.pin_memory speeds up copies to an accelerator, and training runs on {device!r}; "
                "remove it"
            )
        return cls(**{name: getattr(config, name) for name in cls.__dataclass_fields__})

    def prepare(self, module: torch.nn.Module) -> torch.nn.Module:
        """Change how a module computes; its params, names and values stay.

        Raises:
            DataError: it has no blocks that could be computed again.
        """
        if self.checkpoint_activations:
            recompute(module)
        if self.channels_last:
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.compile:
            module.compile()
        return module

    def place(self, batch: Batch, device: torch.device) -> Batch:
        """Return a batch on a device."""
        if not (self.pin_memory or self.channels_last):
            inputs, targets = batch
            if inputs.device == device and targets.device == device:
                return batch
        inputs, targets = (self._placed(tensor, device) for tensor in batch)
        return inputs, targets

    def _placed(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        if self.pin_memory and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        if tensor.device != device:
            tensor = tensor.to(device, non_blocking=True)
        if self.channels_last and tensor.ndim == 4:
            tensor = tensor.to(memory_format=torch.channels_last)  # also of one channel
        return tensor


def choose_device(wanted: str) -> str:
    """Return the device to use: "auto" is the first accelerator if there is one, else the CPU.

    Raises:
        DataError: torch does not know the device, or it is not there.
    """
    there = accelerators()
    if wanted == "auto":
        return there[0] if there else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise DataError(
            f'device {wanted!r} is unknown; say "auto", "cpu", or an accelerator as torch names it, '
            'as "cuda:0"'
        ) from None
    if device.type == "cpu":
        return wanted
    named = f"{device.type}:{device.index or 0}"
    if named not in there:
        seen = ", ".join(there) or "no accelerator"
        raise DataError(f'device {wanted!r} is not there: torch sees {seen}; set device = "auto"')
    return named
