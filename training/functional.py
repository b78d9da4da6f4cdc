"""A module's forward pass with other tensors in the place of its own."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["call_with", "replaced"]


def call_with(
    module: torch.nn.Module, tensors: MutableMapping[str, torch.Tensor], inputs: torch.Tensor
) -> Any:
    """Return what a module gives with these params and buffers, by name; the others are its own.

    Where the module assigns a new tensor to a buffer's name, it is in `tensors` afterwards.

    Guarantees: the module then has its own tensors again. torch.func.functional_call does not give back
        those of a module that is in several places of another one.
    """
    with replaced(module, tensors):
        return module(inputs)


@contextmanager
def replaced(module: torch.nn.Module, tensors: MutableMapping[str, torch.Tensor]) -> Iterator[None]:
    """Put these params and buffers, by name, in the place of the module's own for the block."""
    named: list[tuple[str, torch.Tensor]] = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    names = {id(own): name for name, own in reversed(named) if name in tensors}
    places: list[tuple[dict[str, Any], str, torch.Tensor, str]] = [
        (kept, key, own, names[id(own)])
        for each in module.modules()
        for kept in (each._parameters, each._buffers)
        for key, own in kept.items()
        if own is not None and id(own) in names
    ]
    given = dict(tensors)
    for kept, key, _, name in places:
        kept[key] = given[name]
    try:
        yield
        for kept, key, _, name in places:
            now = kept[key] if key in kept else None  # noqa: SIM401 - TorchScript's have no `get`
            if now is not None and now is not given[name]:
                tensors[name] = now
    finally:
        for kept, key, own, _ in places:
            kept[key] = own
