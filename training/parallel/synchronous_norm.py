"""Batch normalisation over the batch of all ranks, as one process with that batch would do it.

torch's SyncBatchNorm works on GPUs only; this works on every backend.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["Attention", "synchronise_norms"]


class Attention(Protocol):
    """Tells a layer whether the examples of the present pass count."""

    live: bool


def synchronise_norms(module: torch.nn.Module, attention: Attention) -> None:
    """Let every batch norm in a module see the examples of all ranks while it trains.

    Its params, buffers and names stay. All ranks must make the same passes.

    Source: Ioffe and Szegedy 2015, "Batch Normalization", algorithm 1, with the sums over ranks.
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            alone = type(layer).forward.__get__(layer)
            layer.forward = partial(_forward, layer, alone, attention)  # type: ignore[method-assign]


def _forward(
    layer: _BatchNorm, alone: Any, attention: Attention, inputs: torch.Tensor
) -> torch.Tensor:
    if not layer.training and layer.running_mean is not None:
        return alone(inputs)  # type: ignore[no-any-return]
    axes = [0, *range(2, inputs.ndim)]
    shape = [1, -1] + [1] * (inputs.ndim - 2)
    values = inputs.float()
    here = float(attention.live)
    count = torch.full((1,), here * inputs.numel() / inputs.shape[1], device=inputs.device)
    total = _sum_over_ranks(count)
    mean = _sum_over_ranks(values.sum(axes) * here) / total
    centred = values - mean.reshape(shape)
    variance = _sum_over_ranks((centred * centred).sum(axes) * here) / total
    _follow(layer, mean.detach(), variance.detach(), total)
    normal = centred * torch.rsqrt(variance + layer.eps).reshape(shape)
    if layer.affine:
        normal = normal * layer.weight.reshape(shape) + layer.bias.reshape(shape)
    return normal.to(inputs.dtype)


@torch.no_grad()
def _follow(
    layer: _BatchNorm, mean: torch.Tensor, variance: torch.Tensor, total: torch.Tensor
) -> None:
    """Move the running statistics towards those of a batch."""
    if layer.running_mean is None or layer.running_var is None:
        return
    if layer.num_batches_tracked is None:
        return  # activation checkpointing computes the batch again: it was counted
    layer.num_batches_tracked.add_(1)
    rate = layer.momentum
    if rate is None:
        rate = 1.0 / float(layer.num_batches_tracked)
    unbiased = variance * total / (total - 1)
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), rate)
    layer.running_var.lerp_(unbiased.to(layer.running_var.dtype), rate)


class _SumOverRanks(torch.autograd.Function):
    """A sum over ranks, whose gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def _sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = _SumOverRanks.apply(values)  # type: ignore[no-untyped-call]
    return total
