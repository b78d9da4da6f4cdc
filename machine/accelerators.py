"""The accelerators of this machine: CUDA's, ROCm's, XPU, MPS, or a plugin's, all through torch.

torch knows one kind of accelerator in a process; its devices are named as torch names them,
"cuda:0", and count from 0. One that a plugin brings is known once torch has loaded the plugin, which
it does by itself where the plugin has an entry point `torch.backends`.
"""

from __future__ import annotations

from functools import lru_cache

import torch

__all__ = ["accelerators", "free_bytes", "is_accelerator", "wide", "widest_float"]


def accelerators() -> tuple[str, ...]:
    """Return the devices that are there; none: only the CPU is."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return ()
    return tuple(f"{kind.type}:{index}" for index in range(torch.accelerator.device_count()))


def is_accelerator(device: str | torch.device) -> bool:
    """Say whether a device is another one than the CPU."""
    return torch.device(device).type != "cpu"


def free_bytes(device: str | torch.device) -> int | None:
    """Return how much of an accelerator's memory is free; None where torch does not know it, as of
    an accelerator that shares the CPU's memory."""
    try:
        free, _ = torch.accelerator.get_memory_info(device)
    except RuntimeError:
        return None
    return int(free)


def widest_float(device: str | torch.device) -> torch.dtype:
    """Return what sums are made in on a device: float64, or float32 where it has no float64, as
    MPS."""
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
