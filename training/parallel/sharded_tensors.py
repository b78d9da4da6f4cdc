"""Params of which each rank holds a part: the part that is here, and norms over all parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import distributed as dist

from ...machine.accelerators import widest_float

__all__ = ["clip_sharded", "local_of", "whole_of"]


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a sharded tensor that is here, or the whole of another."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def whole_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sharded tensor in full; all ranks must ask for it."""
    full_tensor = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()


@torch.no_grad()
def clip_sharded(
    params: Sequence[torch.nn.Parameter],
    norm: float,
    *,
    within: dist.ProcessGroup | None = None,
) -> None:
    """Scale the gradients of all ranks so that their common L2 norm is `norm` at most.

    `within` are the ranks that hold one copy of the params; without it they are all.

    Source: as torch.nn.utils.clip_grad_norm_, which takes sharded or whole tensors, not both.
    """
    gradients = [param.grad for param in params if param.grad is not None]
    if not gradients:
        return
    device = local_of(gradients[0]).device
    sums = torch.zeros(2, dtype=widest_float(device), device=device)
    for gradient in gradients:
        part = local_of(gradient)
        sums[int(part is not gradient)] += part.to(sums.dtype).pow(2).sum()
    dist.all_reduce(sums[1:], group=within)
    scale = float((norm / (sums.sum().sqrt() + 1e-6)).clamp(max=1.0))
    for gradient in gradients:
        local_of(gradient).mul_(scale)
