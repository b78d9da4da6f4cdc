"""nn.MultiheadAttention with some of its heads on each rank.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3: the projections to queries, keys and values
    by their outputs, the last one by its inputs, and one sum over ranks in each direction.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from .sharded_tensors import local_of

__all__ = ["can_spread", "spread_heads"]

Attention = torch.nn.MultiheadAttention


def can_spread(layer: torch.nn.Module, ranks: int) -> bool:
    """Say whether a layer's heads can be divided among ranks."""
    return (
        type(layer) is Attention
        and layer.in_proj_weight is not None
        and layer.bias_k is None
        and not layer.add_zero_attn
        and layer.num_heads % ranks == 0
    )


def spread_heads(layer: Attention, mesh: DeviceMesh) -> None:
    """Let every rank hold and compute its share of a layer's heads, from the same inputs.

    The stacked projections become (3, width, width), so that a share of the heads is a range of
    rows in each; names and values stay.
    """
    width = layer.embed_dim
    weight, bias = layer.in_proj_weight, layer.in_proj_bias
    layer.in_proj_weight = _sharded(weight.view(3, width, width), 1, mesh)
    if bias is not None:
        layer.in_proj_bias = _sharded(bias.view(3, width), 1, mesh)
    layer.out_proj.weight = _sharded(layer.out_proj.weight, 1, mesh)
    layer.forward = partial(_forward, layer, mesh)  # type: ignore[method-assign]


def _sharded(tensor: torch.Tensor, axis: int, mesh: DeviceMesh) -> torch.nn.Parameter:
    whole = tensor.detach().contiguous()
    return torch.nn.Parameter(
        distribute_tensor(whole, mesh, [Shard(axis)]), requires_grad=tensor.requires_grad
    )


def _forward(
    layer: Attention,
    mesh: DeviceMesh,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As nn.MultiheadAttention's; weights of single heads are not gathered."""
    if need_weights and not average_attn_weights:
        raise ValueError('the weights of single heads are spread over ranks under "tensor"')
    group, single = mesh.get_group(), query.ndim == 2
    inputs = [each.unsqueeze(0) if single else each for each in (query, key, value)]
    if not single and not layer.batch_first:
        inputs = [each.transpose(0, 1) for each in inputs]
    ours = [_Enter.apply(each, group) for each in inputs]  # type: ignore[no-untyped-call]
    queries, keys, values = (_projected(layer, part, each) for part, each in enumerate(ours))
    scores = queries @ keys.transpose(-2, -1) * layer.head_dim**-0.5
    scores = scores + _mask(layer, mesh, scores, attn_mask, key_padding_mask)
    weights = torch.softmax(scores, dim=-1)
    dropped = torch.nn.functional.dropout(weights, layer.dropout, layer.training)
    joined = (dropped @ values).transpose(1, 2).flatten(2)
    part = torch.nn.functional.linear(joined, local_of(layer.out_proj.weight))
    outputs: torch.Tensor = _Leave.apply(part, group)  # type: ignore[no-untyped-call]
    if layer.out_proj.bias is not None:
        outputs = outputs + layer.out_proj.bias
    mean = None
    if need_weights:
        mean = _Leave.apply(weights.sum(1), group) / layer.num_heads  # type: ignore[no-untyped-call]
    if single:
        return outputs.squeeze(0), None if mean is None else mean.squeeze(0)
    return outputs if layer.batch_first else outputs.transpose(0, 1), mean


def _projected(layer: Attention, part: int, inputs: torch.Tensor) -> torch.Tensor:
    """Return this rank's heads' queries, keys or values: (batch, heads, length, head width)."""
    bias = layer.in_proj_bias
    weight = local_of(layer.in_proj_weight)[part]
    made = torch.nn.functional.linear(
        inputs, weight, None if bias is None else local_of(bias)[part]
    )
    batch, length, _ = made.shape
    return made.view(batch, length, -1, layer.head_dim).transpose(1, 2)


def _mask(
    layer: Attention,
    mesh: DeviceMesh,
    scores: torch.Tensor,
    attn_mask: torch.Tensor | None,
    key_padding_mask: torch.Tensor | None,
) -> torch.Tensor:
    """Return what is added to the scores: -inf at masked places."""
    batch, heads, length, keys = scores.shape
    total = scores.new_zeros(())
    if attn_mask is not None:
        if attn_mask.ndim == 3:  # one for each example and head
            mine = slice(mesh.get_local_rank() * heads, (mesh.get_local_rank() + 1) * heads)
            attn_mask = attn_mask.view(batch, layer.num_heads, length, keys)[:, mine]
        total = total + _as_floats(attn_mask, scores)
    if key_padding_mask is not None:
        total = total + _as_floats(key_padding_mask, scores).view(batch, 1, 1, keys)
    return total


def _as_floats(mask: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask.to(scores.dtype)
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, float("-inf"))


class _Enter(torch.autograd.Function):
    """The identity, whose gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        context.group = group
        return values

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=context.group)
        return total, None


class _Leave(torch.autograd.Function):
    """The sum over ranks, on each of them; the gradient passes unchanged."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        total = values.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None
