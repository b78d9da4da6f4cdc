"""A module as a sequence of layers, and where to cut it into the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ...errors import DataError

__all__ = ["Stages", "cut", "sequence_of"]

Stages = Callable[[torch.nn.Module], Sequence[torch.nn.Module]]
"""A task's list of its model's layers, in order."""


def sequence_of(
    module: torch.nn.Module, stages: Stages | None, *, ranks: int
) -> list[torch.nn.Module]:
    """Return a module's layers: the task's own list, or an nn.Sequential's.

    Raises:
        DataError: there is no list, it is too short, a param is in no layer, or a layer has a
            batch norm.
    """
    if stages is not None:
        layers = list(stages(module))
    elif isinstance(module, torch.nn.Sequential):
        layers = list(module)
    else:
        raise DataError(
            'device.parallel = "pipeline" needs a model that is an nn.Sequential, or a task that '
            f'lists its stages, got {type(module).__name__}; give Task(stages=...), or say "fsdp"'
        )
    if len(layers) < ranks:
        raise DataError(
            f"a pipeline of {ranks} ranks needs as many layers, and the model has {len(layers)}; "
            "set fewer device.processes"
        )
    listed = {id(param) for layer in layers for param in layer.parameters()}
    missing = [name for name, param in module.named_parameters() if id(param) not in listed]
    if missing:
        raise DataError(f"param {missing[0]!r} is in none of the task's stages; add its module")
    if any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        raise DataError(
            'a batch norm would see micro-batches under device.parallel = "pipeline", and give '
            'another model; say "fsdp", or use a group norm'
        )
    return layers


def cut(sizes: Sequence[int], parts: int) -> list[int]:
    """Return where to cut layers of these sizes into parts of about the same size: the first
    layer of each part, and the end.

    Guarantees: no part is without a layer.
    """
    total, done, cuts = sum(sizes), 0, [0]
    for index, size in enumerate(sizes):
        left = parts - len(cuts)
        enough = done + size / 2 > total * len(cuts) / parts
        must = len(sizes) - index == left
        if left and index > cuts[-1] and (enough or must):
            cuts.append(index)
        done += size
    return [*cuts, len(sizes)]
