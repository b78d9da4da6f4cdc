"""Batch and group normalization of many clients as one operation, which has the channels of all of them.

Under vmap torch normalizes without weight and bias, which are a client's, and multiplies and adds
afterwards; backwards it does so once more, in nine passes over memory in all. But channels are
normalized each for itself, or in groups, so clients' channels can lie side by side, as those of
convolutions do: one pass of torch's own operation, and one backwards.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd import Function
from torch.func import vjp

__all__ = ["batch_norm", "group_norm"]

aten = torch.ops.aten


def batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor | None:
    """Return what `torch.nn.functional.batch_norm` does within rounding, running statistics included; None
    where that should do it itself.

    Shapes: input (batch, channels, ...), the others (channels,).
    """
    statistics = [each for each in (running_mean, running_var) if each is not None]
    if not training or len(statistics) == 1 or not _are_plain([input, weight, bias, *statistics]):
        return None
    if input.numel() <= input.shape[1] or any(each.requires_grad for each in statistics):
        return None  # torch says what is wrong
    given = input, weight, bias, running_mean, running_var, momentum, eps
    made: tuple[torch.Tensor, ...] = _BatchNorm.apply(*given)  # type: ignore[no-untyped-call]
    return made[0]


def group_norm(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor | None:
    """Return what `torch.nn.functional.group_norm` does within rounding; None where that should do it itself.

    Shapes: input (batch, channels, ...), the others (channels,).
    """
    if not _are_plain([input, weight, bias]) or num_groups < 1 or input.shape[1] % num_groups:
        return None
    given = input, weight, bias, num_groups, eps
    made: tuple[torch.Tensor, ...] = _GroupNorm.apply(*given)  # type: ignore[no-untyped-call]
    return made[0]


def _are_plain(given: list[torch.Tensor | None]) -> bool:
    """Return whether an input, a weight and a bias, and perhaps more, are float32 on a CPU, and fit."""
    if any(each is None or each.dtype != torch.float32 for each in given):
        return False
    first, *others = [each for each in given if each is not None]
    if first.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    fit = first.ndim >= 2 and all(each.shape == first.shape[1:2] for each in others)
    return fit and first.numel() > 0


class _SideBySide(Function):
    """An operation on channels, each for itself or in groups, mapped over clients: tensors of one dimension are a
    value a channel, others have a batch before their channels."""

    groups_at: int | None = None
    """Which argument is the number of groups."""
    changes: tuple[int, ...] = ()
    """Which arguments are changed in place."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *given: Any) -> Any:
        """Do it once for the channels of all clients."""
        count, laid = info.batch_size, list(given)
        for number, (each, place) in enumerate(zip(given, in_dims, strict=True)):
            if number == cls.groups_at:
                laid[number] = each * count
            elif isinstance(each, torch.Tensor):
                if place is None and number in cls.changes:
                    raise RuntimeError("running statistics that clients share cannot be updated")
                laid[number] = _side_by_side(each, place, count)
        made = cls.apply(*laid)  # type: ignore[no-untyped-call]
        for number in cls.changes:
            if isinstance(given[number], torch.Tensor):
                stack = given[number].movedim(in_dims[number], 0)
                if stack.data_ptr() != laid[number].data_ptr():  # it lay otherwise
                    stack.copy_(laid[number].view_as(stack))
        apart = tuple(
            each.view(count, -1) if each.ndim == 1 else each.unflatten(1, (count, -1))
            for each in made
        )
        return apart, tuple(0 if each.ndim == 1 else 1 for each in made)


def _side_by_side(tensor: torch.Tensor, place: int | None, count: int) -> torch.Tensor:
    """Return a stack of so many clients as one client's tensor with the channels of all."""
    stack = tensor.expand(count, *tensor.shape) if place is None else tensor.movedim(place, 0)
    return stack.reshape(-1) if stack.ndim == 2 else stack.movedim(0, 1).flatten(1, 2)


class _BatchNorm(_SideBySide):
    changes = 3, 4

    @staticmethod
    def forward(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        mean: torch.Tensor | None,
        var: torch.Tensor | None,
        momentum: float,
        eps: float,
    ) -> Any:
        return aten.native_batch_norm(input, weight, bias, mean, var, True, momentum, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2], *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.eps = inputs[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        made = _BatchNormBackward.apply(gradients[0], *ctx.saved_tensors, ctx.eps)  # type: ignore[no-untyped-call]
        return *made, None, None, None, None


class _BatchNormBackward(_SideBySide):
    @staticmethod
    def forward(
        gradient: torch.Tensor,
        input: torch.Tensor,
        weight: torch.Tensor,
        mean: torch.Tensor,
        scale: torch.Tensor,
        eps: float,
    ) -> Any:
        given = gradient, input, weight, None, None, mean, scale, True, eps, [True, True, True]
        return aten.native_batch_norm_backward(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.eps = inputs[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        *given, mean, scale = ctx.saved_tensors

        def again(gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor) -> Any:
            return _BatchNormBackward.forward(gradient, input, weight, mean, scale, ctx.eps)

        return *vjp(again, *given)[1](gradients), None, None, None


class _GroupNorm(_SideBySide):
    groups_at = 3

    @staticmethod
    def forward(
        input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float
    ) -> Any:
        batch, channels, *rest = input.shape
        return aten.native_group_norm(
            input.contiguous(), weight, bias, batch, channels, math.prod(rest), groups, eps
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], *output[1:], inputs[1])
        ctx.mark_non_differentiable(*output[1:])
        ctx.numbers = inputs[3:]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        made = _GroupNormBackward.apply(gradients[0], *ctx.saved_tensors, *ctx.numbers)  # type: ignore[no-untyped-call]
        return *made, None, None


class _GroupNormBackward(_SideBySide):
    groups_at = 5

    @staticmethod
    def forward(
        gradient: torch.Tensor,
        input: torch.Tensor,
        mean: torch.Tensor,
        scale: torch.Tensor,
        weight: torch.Tensor,
        groups: int,
        eps: float,
    ) -> Any:
        batch, channels, *rest = input.shape
        given = gradient.contiguous(), input.contiguous(), mean, scale, weight
        return aten.native_group_norm_backward(
            *given, batch, channels, math.prod(rest), groups, [True, True, True]
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2], inputs[4])
        ctx.numbers = inputs[5:]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        groups, eps = ctx.numbers

        def norm(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return torch.group_norm(input, groups, weight, bias, eps)

        def again(gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor) -> Any:
            return vjp(norm, input, weight, torch.zeros_like(weight))[1](gradient)

        made = vjp(again, *ctx.saved_tensors)[1](gradients)
        return *made[:2], None, None, made[2], None, None
