"""Layers of many clients in the form that takes the least time.

Convolutions: mapped over clients with weights of their own, a convolution becomes one with as many groups as there are
clients. On a CPU oneDNN computes the first one of a network, whose images have one or three channels, at a
small part of the speed of a matrix product, and so it does one of single pixels. These are products
of a weight with the columns of an image here: 0.35 to 0.9 of the time, with their gradients (measured). Of
other convolutions the columns, and what goes back through them, would take longer than is saved.

Batch and group normalization: see `stacked_norms`.

LSTM: on a CPU oneDNN has one operation for a layer and all its steps, which cannot be mapped, so that clients
take it one after the other. A step as products of all clients takes 0.4 of the time (measured).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .stacked_norms import batch_norm, group_norm

__all__ = ["StackedLayers", "product_of"]

COLUMN_VALUES_MAX = 32
"""So many values of an image has a column at most, unless its pixels are the columns."""


class StackedLayers(TorchFunctionMode):
    """Within it, `torch.conv2d` is computed as a product where that takes less time, batch and group
    normalization as `stacked_norms` does, and `torch.lstm` as operations that can be mapped."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _OTHERWISE:
            made = _OTHERWISE[func](*args, **(kwargs or {}))
            if made is not None:
                return made
        if func is torch.lstm:
            enabled = torch._C._get_mkldnn_enabled()
            torch._C._set_mkldnn_enabled(False)
            try:
                return func(*args, **(kwargs or {}))
            finally:
                torch._C._set_mkldnn_enabled(enabled)
        return func(*args, **(kwargs or {}))


def product_of(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: str | int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> torch.Tensor | None:
    """Return the convolution by a product, as `torch.conv2d` within rounding; None where that is
    not worth it.

    Shapes: input (batch, channels, height, width), weight (outputs, channels, rows, columns).
    """
    if input.ndim != 4 or weight.ndim != 4 or groups != 1 or isinstance(padding, str):
        return None
    if input.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return None
    dtypes = {each.dtype for each in (input, weight, bias) if each is not None}
    is_known = len(dtypes) == 1 and input.shape[1] == weight.shape[1] and input.numel() > 0
    if not is_known or weight.numel() == 0 or (bias is not None and bias.shape != weight.shape[:1]):
        return None  # torch says what is wrong, or does what is right
    strides, pads, gaps = _pair(stride), _pair(padding), _pair(dilation)
    outputs, *kernel = weight.shape
    if min(*strides, *gaps) < 1 or min(pads) < 0:
        return None
    if kernel[1:] == [1, 1] and pads == (0, 0):
        pixels = input if strides == (1, 1) else input[:, :, :: strides[0], :: strides[1]]
        shape, columns = pixels.shape[2:], pixels.flatten(2)
    elif strides == (1, 1) and not input.requires_grad and weight[0].numel() <= COLUMN_VALUES_MAX:
        padded = functional.pad(input, (pads[1], pads[1], pads[0], pads[0]))
        reach = [gap * (size - 1) for gap, size in zip(gaps, kernel[1:], strict=True)]
        shape = torch.Size(n - r for n, r in zip(padded.shape[2:], reach, strict=True))
        if min(shape) < 1:
            return None  # torch says what is wrong
        windows = padded.unfold(2, shape[0], gaps[0]).unfold(3, shape[1], gaps[1])
        columns = windows.reshape(len(input), -1, shape.numel())
    else:
        return None
    rows = weight.flatten(1).expand(len(input), -1, -1)
    made = torch.bmm(rows, columns)  # torch.matmul would transpose both when it is mapped
    if bias is not None:
        made = made + bias[:, None]
    return made.view(len(input), outputs, *shape)


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(value, int):
        return value, value
    both = tuple(value)
    return both * 2 if len(both) == 1 else both


_OTHERWISE: dict[Any, Callable[..., torch.Tensor | None]] = {
    torch.conv2d: product_of,
    functional.batch_norm: batch_norm,
    functional.group_norm: group_norm,
}
"""What is computed in another way, where that gives something."""
