"""The accelerators of this machine: CUDA's, ROCm's, XPU, MPS, or a plugin's, all through torch.

torch supports one kind of accelerator in a process. Devices have torch's names, "cuda:0", numbered from
0. The device of a plugin is known once torch has loaded the plugin, which it does by itself for plugins
with an entry point `torch.backends`.
"""

from __future__ import annotations

from functools import lru_cache

import torch

__all__ = ["accelerators", "free_bytes", "is_accelerator", "wide", "widest_float"]


def accelerators() -> tuple[str, ...]:
    """Return the available devices; empty if there is only the CPU."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return ()
    return tuple(f"{kind.type}:{index}" for index in range(torch.accelerator.device_count()))


def is_accelerator(device: str | torch.device) -> bool:
    """Return whether a device is not the CPU."""
    return torch.device(device).type != "cpu"


def free_bytes(device: str | torch.device) -> int | None:
    """Return the free bytes of an accelerator's memory; None where torch cannot tell, as for an
    accelerator that shares the CPU's memory."""
    try:
        free, _ = torch.accelerator.get_memory_info(device)
    except RuntimeError:
        return None
    return int(free)


def widest_float(device: str | torch.device) -> torch.dtype:
    """Return the dtype of sums on a device: float64, or float32 on devices without float64, as MPS."""
    device = torch.device(device)
    return torch.float64 if device.type == "cpu" else _widest_float(device)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in its device's widest float."""
    return tensor.to(widest_float(tensor.device))


@lru_cache
def _widest_float(device: torch.device) -> torch.dtype:
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):
        return torch.float32
    return torch.float64
