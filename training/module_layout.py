"""A module's tensors, looked up once for as long as the module consists of the same parts.

torch's `state_dict`, `parameters` and `train` walk over all of a module in tens of Python calls a layer.
A client needs five such walks, which were a tenth of a small model's round.
"""

from __future__ import annotations

import weakref
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any

import torch

__all__ = ["ModuleLayout", "begin_training", "layout_of"]

_WALKS = (
    "state_dict", "_save_to_state_dict", "get_extra_state", "_named_members",
    "parameters", "named_parameters", "buffers", "named_buffers",
    "children", "named_children", "modules", "named_modules", "__eq__", "__hash__",
)  # fmt: skip
"""Methods of torch.nn.Module that a layout stands for, and those that they call."""
_DICTS = "_parameters", "_buffers", "_modules"
_OTHERS = "_non_persistent_buffers_set", "_state_dict_hooks", "_state_dict_pre_hooks"
"""Where a torch.nn.Module keeps what those methods look at."""
_METHODS = frozenset((*_WALKS, "train"))
_dicts_of, _others_of = itemgetter(*_DICTS), itemgetter(*_OTHERS)

_last: ModuleLayout | None = None
"""The layout of the last module that was asked for: a process trains one."""


def layout_of(module: torch.nn.Module) -> ModuleLayout:
    """Return what a module consists of now."""
    global _last
    found = _last  # another thread may put its own there
    if found is None or not found.is_of(module):
        found = _last = ModuleLayout(module)
    return found


def begin_training(module: torch.nn.Module) -> None:
    """Do what `module.train()` does."""
    if not layout_of(module).is_training():
        module.train()


class ModuleLayout:
    """What a module consists of. It does not keep the module itself alive."""

    def __init__(self, module: torch.nn.Module) -> None:
        every = _with_parts(module)
        self._module = weakref.ref(module, _forget)
        self._inner = every[1:]
        self._vars = [vars(each) for each in every]
        self._usual = all(_walks_as_torch(each) for each in every)
        self._train_as_torch = self._usual and all(_is_torchs(each, "train") for each in every)
        self._sizes = [*map(len, self._vars)]
        if self._usual:
            self._parts = self._parts_of(module)
            dicts = chain.from_iterable(map(_dicts_of, self._vars))
            self._held = [*chain.from_iterable(map(dict.values, dicts))]  # keeps their ids

    @cached_property
    def state(self) -> dict[str, torch.Tensor]:
        """The module's `state_dict`: its very params and buffers. Not to be changed."""
        return dict(self._known().state_dict(keep_vars=True))

    @cached_property
    def params(self) -> list[torch.nn.Parameter]:
        """Its `parameters`. Not to be changed."""
        return [*self._known().parameters()]

    def is_of(self, module: torch.nn.Module) -> bool:
        """Return whether this is still a module's layout: it consists of the same modules, params and
        buffers by the same names. Always False where torch's own methods would not tell."""
        if self._module() is not module or not self._usual:
            return False
        if self._sizes != [*map(len, self._vars)] and not all(map(_METHODS.isdisjoint, self._vars)):
            return False
        return self._parts == self._parts_of(module)

    def is_training(self) -> bool:
        """Return whether every part is in training mode already, and torch's `train` would set it."""
        training = [held.get("training") for held in self._vars]
        return self._train_as_torch and training.count(True) == len(training)

    def _parts_of(self, module: torch.nn.Module) -> tuple[list[Any], ...]:
        """Return all that tells one layout from another."""
        dicts = [*chain.from_iterable(map(_dicts_of, self._vars))]
        parts = [*dicts, *chain.from_iterable(map(_others_of, self._vars))]
        names = [*chain.from_iterable(filter(None, parts))]
        values = chain.from_iterable(map(dict.values, filter(None, dicts)))
        kinds = [type(module), *map(type, self._inner)]
        return kinds, [*map(len, parts)], names, [*map(id, values)]

    def _known(self) -> torch.nn.Module:
        module = self._module()
        assert module is not None, "whoever asks holds it"
        return module


def _forget(module: object) -> None:
    global _last
    found = _last
    if found is not None and found._module is module:
        _last = None


def _with_parts(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return a module and all parts of it, each once, also those that it does not list itself."""
    found = {id(module): module}
    left = [module]
    while left:
        for part in vars(left.pop()).get("_modules", {}).values():
            if part is not None and id(part) not in found:
                found[id(part)] = part
                left.append(part)
    return [*found.values()]


def _walks_as_torch(module: torch.nn.Module) -> bool:
    """Return whether torch's own methods, without hooks, say what a module consists of."""
    held = vars(module)
    plain = all(type(held.get(name)) is dict for name in _DICTS)
    hooked = any(held.get(name, True) for name in _OTHERS[1:])
    return plain and not hooked and all(_is_torchs(module, name) for name in _WALKS)


def _is_torchs(module: torch.nn.Module, name: str) -> bool:
    """Return whether a method of a module is torch.nn.Module's own."""
    theirs = getattr(type(module), name) is not getattr(torch.nn.Module, name)
    return not theirs and name not in vars(module)
