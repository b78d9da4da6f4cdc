"""Activation checkpointing: blocks whose insides are computed again in the backward pass.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", as torch's checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from ..errors import DataError

__all__ = ["recompute"]

CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


def recompute(module: torch.nn.Module) -> None:
    """Let each block of a module keep only what goes into it until the backward pass.

    A block is a layer made of layers: a child of the module, or of containers in it. Its class
    becomes one of the same name that computes it again; names, params and values stay, and so do
    random numbers, as dropout draws the same ones again.

    Raises:
        DataError: there are no such blocks.
    """
    blocks = [*_blocks_in(module)]
    if not blocks:
        raise DataError(
            f"device.checkpoint_activations computes blocks again, and {type(module).__name__} "
            "has none: no child that is made of layers with params; remove it, or group the layers "
            "in modules of their own"
        )
    for block in blocks:
        kind = type(block)
        block.__class__ = type(kind.__name__, (_Recomputed, kind), {"__module__": kind.__module__})


class _Recomputed(torch.nn.Module):
    """Mixed in before a block's own class."""

    def forward(self, *inputs: Any, **more: Any) -> Any:
        ahead = super().forward
        if not (self.training and torch.is_grad_enabled()):
            return ahead(*inputs, **more)
        return checkpoint(
            ahead, *inputs, use_reentrant=False, context_fn=lambda: _contexts(self), **more
        )


def _contexts(
    block: torch.nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the first and of the second computation."""
    return nullcontext(), _without_statistics(block)


@contextmanager
def _without_statistics(block: torch.nn.Module) -> Iterator[None]:
    """Let batch norms not count the same batch a second time."""
    norms = [layer for layer in block.modules() if isinstance(layer, _BatchNorm)]
    kept = [(layer.momentum, layer.num_batches_tracked) for layer in norms]
    for layer in norms:
        layer.momentum, layer.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for layer, (momentum, count) in zip(norms, kept, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, count


def _blocks_in(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module.children():
        if type(child) in CONTAINERS and not _is_flat(child):
            yield from _blocks_in(child)
        elif not isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict) and _is_block(child):
            yield child


def _is_block(module: torch.nn.Module) -> bool:
    layers = [layer for layer in module.modules() if layer is not module]
    return bool(layers) and any(True for _ in module.parameters())


def _is_flat(container: torch.nn.Module) -> bool:
    """Whether a container has single layers only; as a sequence it is a block itself."""
    return not any(_is_block(child) for child in container.children())
