"""What a module holds in Python beside its params and buffers: counters, lists, plain tensors.

Nothing of it is sent, so a site must begin every training with it as the module was built: what one
training leaves there would be seen by the next one, of another client or after a restart.
"""

from __future__ import annotations

import math
import operator
import random
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["PythonState"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OF_TORCH = frozenset(vars(nn.Module()))
_OF_RECURRENT = frozenset(
    ("_flat_weights", "_flat_weight_refs", "_flat_weights_names", "_all_weights")
)
"""Other ways in which torch's recurrent layers hold their params."""
_DATA = (
    np.ndarray, np.generic, torch.dtype, torch.device,
    torch.Generator, np.random.Generator, random.Random,
)  # fmt: skip
_MISSING = object()


class PythonState:
    """The attributes of a module and of those in it that are data, as they were when this was made.

    Data are numbers, strings, tensors that are neither params nor buffers, arrays, generators of
    random numbers, and lists, tuples, sets, deques and dicts of data. Other objects are left alone.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kept = {
            place: {name: _copied(value) for name, value in _data_of(each)}
            for place, each in module.named_modules()
        }

    def changed(self) -> str:
        """Return the name of an attribute that is not as it was, "" if there is none."""
        return next((f"{place}.{name}".lstrip(".") for place, name, _ in self._changes()), "")

    def restore(self) -> None:
        """Restore every attribute, and delete new ones."""
        for place, name, before in list(self._changes()):
            module = self._module.get_submodule(place)
            if before is _MISSING:
                delattr(module, name)
            else:
                setattr(module, name, _copied(before))

    def _changes(self) -> Iterator[tuple[str, str, Any]]:
        for place, module in self._module.named_modules():
            kept = self._kept.get(place, {})
            for name, value in vars(module).items():
                if name in _OF_TORCH:
                    continue
                before = kept.get(name, _MISSING)
                if before is value:
                    continue
                is_data = _holds_data(module, name, value)
                if not _same(before, value) if is_data else before is not _MISSING:
                    yield place, name, before
            for name in kept.keys() - vars(module).keys():
                yield place, name, kept[name]


def _data_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if _holds_data(module, name, value):
            yield name, value


def _holds_data(module: nn.Module, name: str, value: Any) -> bool:
    if name in _OF_TORCH or (name in _OF_RECURRENT and isinstance(module, nn.RNNBase)):
        return False
    return _is_data(value)


def _is_data(value: Any) -> bool:
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, list | tuple | set | frozenset | deque):
        return all(map(_is_data, value))
    if isinstance(value, Mapping):
        return all(map(_is_data, value)) and all(map(_is_data, value.values()))
    if isinstance(value, torch.Tensor):
        return not isinstance(value, nn.Parameter)
    return isinstance(value, _DATA)


def _copied(value: Any) -> Any:
    """Return a copy that no change of `value` reaches."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device).set_state(value.get_state())
    if isinstance(value, np.random.Generator):
        made = np.random.Generator(type(value.bit_generator)())
        made.bit_generator.state = value.bit_generator.state
        return made
    if isinstance(value, random.Random):
        other = random.Random()
        other.setstate(value.getstate())
        return other
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (list, set, deque, tuple):
        copies = [_copied(each) for each in value]
        if type(value) is tuple and all(map(operator.is_, copies, value)):
            return value  # nothing in it can be changed: it is compared faster
        return type(value)(copies)
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    return value


def _same(before: Any, now: Any) -> bool:
    if type(before) is not type(now):
        return False
    if isinstance(now, torch.Tensor):
        alike = before.shape == now.shape and before.dtype == now.dtype
        return alike and bool(torch.equal(before, now.detach()))
    if isinstance(now, np.ndarray):
        return bool(np.array_equal(before, now))
    if isinstance(now, torch.Generator):
        return bool(torch.equal(before.get_state(), now.get_state()))
    if isinstance(now, np.random.Generator):
        return bool(before.bit_generator.state == now.bit_generator.state)
    if isinstance(now, random.Random):
        return bool(before.getstate() == now.getstate())
    if isinstance(now, list | tuple | deque):
        return len(before) == len(now) and all(map(_same, before, now))
    if isinstance(now, dict):
        return before.keys() == now.keys() and all(_same(before[k], v) for k, v in now.items())
    return bool(before == now) or (isinstance(now, float) and math.isnan(before + now))
