"""What a module holds in Python beside its params and buffers: counters, lists, plain tensors.

Nothing of it is sent, so a site must begin every training with it as the module was built: what one
training leaves there would be seen by the next one, of another client or after a restart. So it is
with what a loss holds.
"""

from __future__ import annotations

import copy
import inspect
import math
import random
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["PythonState"]

_LEFT_ALONE = frozenset(("torch", "numpy", *sys.stdlib_module_names))
"""Packages whose objects are not looked into: what they hold is theirs."""

_PLAIN = bool, int, float, complex, str, bytes, type(None)
_PLAIN_TYPES = frozenset(_PLAIN)
_OF_TORCH = frozenset(vars(nn.Module()))
_OF_RECURRENT = frozenset(
    ("_flat_weights", "_flat_weight_refs", "_flat_weights_names", "_all_weights")
)
"""Other ways in which torch's recurrent layers hold their params."""
_DATA = (
    np.ndarray, np.generic, torch.dtype, torch.device,
    torch.Generator, np.random.Generator, random.Random,
)  # fmt: skip
_LEFT = object()
"""What is held of an object that is left alone."""


class PythonState:
    """The attributes of a module or a loss that are data, as they were when this was made.

    Data are numbers, strings, tensors that are neither params nor buffers, arrays, generators of
    random numbers, and lists, tuples, sets, deques and mappings of data. So are the attributes of
    modules in it, and of attributes that are objects of people's own classes; of a function, those of
    the modules that it calls by name. Other objects are left alone.

    Guarantees: what was one object, in several modules or elsewhere, is one after `restore`.
    """

    def __init__(self, holder: object, *, buffers: bool = False) -> None:
        """With `buffers`, those of a module count too."""
        self._of_torch = _OF_TORCH - {"_buffers"} if buffers else _OF_TORCH
        known: dict[int, _Kept] = {}
        self._kept = [
            (
                place,
                each,
                {name: _kept(value, known) for name, value in self._attributes_of(each)},
                frozenset(vars(each)),
            )
            for place, each in self._holders(holder)
        ]

    def changed(self) -> str:
        """Return the name of an attribute that is not as it was, "" if there is none."""
        return next((f"{place}.{name}".lstrip(".") for place, _, name, _ in self._changes()), "")

    def restore(self) -> None:
        """Restore every attribute, and delete new ones."""
        for _, holder, name, before in list(self._changes()):
            if isinstance(holder, nn.Module):
                setattr(holder, name, before.put_back()) if before else delattr(holder, name)
            elif before:
                vars(holder)[name] = before.put_back()  # which a class may refuse by its name
            else:
                del vars(holder)[name]

    def _changes(self) -> Iterator[tuple[str, Any, str, _Kept | None]]:
        for place, holder, kept, names in self._kept:
            now = vars(holder)
            for name, before in kept.items():
                if name not in now or not before.is_as_it_was(now[name]):
                    yield place, holder, name, before
            if now.keys() == names:
                continue
            for name, value in self._attributes_of(holder, but=kept):
                if _is_data(value):
                    yield place, holder, name, None

    def _attributes_of(self, holder: object, *, but: Collection[str] = ()) -> list[tuple[str, Any]]:
        """Return the attributes that are neither torch's own nor other ways to hold params."""
        own = self._of_torch if isinstance(holder, nn.Module) else frozenset()
        own = own | _OF_RECURRENT if isinstance(holder, nn.RNNBase) else own
        held = vars(holder).items()
        return [pair for pair in held if pair[0] not in own and pair[0] not in but]

    def _holders(self, first: object) -> Iterator[tuple[str, Any]]:
        """Return the objects whose attributes count, each once and with its place."""
        left, seen = [("", first), *_behind_function(first)], set[int]()
        while left:
            place, each = left.pop()
            if id(each) in seen or not hasattr(each, "__dict__") or isinstance(each, type):
                continue
            seen.add(id(each))
            yield place, each
            inside = [pair for pair in self._attributes_of(each) if _is_looked_into(pair[1])]
            if isinstance(each, nn.Module):
                inside += each.named_children()
            left += [(f"{place}.{name}".lstrip("."), value) for name, value in reversed(inside)]


def _behind_function(first: object) -> Iterator[tuple[str, object]]:
    """Return the object of a method, and the modules that a function finds by their names."""
    if inspect.ismethod(first):
        yield "", first.__self__
    elif isinstance(first, partial):
        yield "", first.func
        yield from _behind_function(first.func)
    elif inspect.isfunction(first):
        code = first.__code__
        found = {name: first.__globals__.get(name) for name in code.co_names}
        for name, cell in zip(code.co_freevars, first.__closure__ or (), strict=True):
            with suppress(ValueError):  # it is empty as yet
                found[name] = cell.cell_contents
        yield from ((name, value) for name, value in found.items() if isinstance(value, nn.Module))


@dataclass(slots=True)
class _Kept:
    """A value, and what it held: None where nothing in it can change."""

    value: Any
    held: Any

    def is_as_it_was(self, now: Any) -> bool:
        """Return whether a value, this one or another, holds the same."""
        value, held = self.value, self.held
        if now is value and (held is None or held is _LEFT):
            return True
        if held is _LEFT:
            return not _is_data(now)
        if type(now) is not type(value):
            return False
        if isinstance(now, torch.Tensor):
            return _equal(held, now.detach())
        if isinstance(now, np.ndarray):
            return bool(np.array_equal(held, now))
        if isinstance(now, torch.Generator):
            return bool(torch.equal(held, now.get_state()))
        if isinstance(now, np.random.Generator):
            return bool(held == now.bit_generator.state)
        if isinstance(now, random.Random):
            return bool(held == now.getstate())
        if isinstance(held, tuple):  # a vocabulary may be long
            with suppress(RuntimeError, ValueError):  # by now it holds tensors or arrays
                return held == tuple(now.items() if isinstance(now, Mapping) else now)
            return False
        if isinstance(now, list | deque | tuple):
            parts = [_kept(each, {}) for each in value] if held is None else held
            return len(parts) == len(now) and all(map(_Kept.is_as_it_was, parts, now))
        if isinstance(now, Mapping):
            alike = [*held] == [*now]  # an order counts: a cache may forget its oldest entry
            return alike and all(each.is_as_it_was(now[key]) for key, each in held.items())
        if isinstance(now, set):
            return bool(held == now)
        return bool(value == now) or (isinstance(now, float) and math.isnan(value + now))

    def put_back(self) -> Any:
        """Return the value, which holds again what it held."""
        value, held = self.value, self.held
        if isinstance(value, torch.Tensor | np.ndarray):
            return value if self.is_as_it_was(value) else _refilled(value, held)
        if isinstance(value, torch.Generator):
            value.set_state(held)
        elif isinstance(value, np.random.Generator):
            value.bit_generator.state = held
        elif isinstance(value, random.Random):
            value.setstate(held)
        elif held is None or held is _LEFT:
            pass
        elif isinstance(value, set):
            value.clear()
            value.update(held)
        elif isinstance(value, Mapping):
            pairs = held if isinstance(held, tuple) else tuple(held.items())
            before = {k: each.put_back() if isinstance(each, _Kept) else each for k, each in pairs}
            if isinstance(value, MutableMapping):
                value.clear()
                value.update(before)
        else:
            items = held if isinstance(held, tuple) else [each.put_back() for each in held]
            if not isinstance(value, tuple):
                value.clear()
                value.extend(items)
        return value


def _kept(value: Any, known: dict[int, _Kept]) -> _Kept:
    """Return a value with what it holds; each object is kept once."""
    found = known.get(id(value))
    if found is None:
        held = None
        if type(value) not in _PLAIN_TYPES:
            held = _held(value, known) if _is_data(value) else _LEFT
        known[id(value)] = found = _Kept(value, held)
    return found


def _held(value: Any, known: dict[int, _Kept]) -> Any:
    """Return a copy of what a value holds, that no change of it reaches: a tuple of what is in a list or
    a mapping of numbers and strings, and what each object in others holds."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return copy.deepcopy(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, Mapping):
        if _are_plain(value.values()):
            return tuple(value.items())
        return {key: _kept(each, known) for key, each in value.items()}
    if isinstance(value, list | deque) and _are_plain(value):
        return tuple(value)
    if isinstance(value, list | deque | tuple):
        parts = [_kept(each, known) for each in value]
        fixed = isinstance(value, tuple) and all(each.held is None for each in parts)
        return None if fixed else parts
    return None


def _is_data(value: Any) -> bool:
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, list | tuple | set | frozenset | deque):
        return _are_plain(value) or all(map(_is_data, value))
    if isinstance(value, Mapping):
        return _is_data(list(value)) and _is_data(list(value.values()))
    if isinstance(value, torch.Tensor):
        return not isinstance(value, nn.Parameter)
    return isinstance(value, _DATA)


def _are_plain(values: Iterable[Any]) -> bool:
    return _PLAIN_TYPES.issuperset(map(type, values))


def _is_looked_into(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return False
    if isinstance(value, nn.Module | SimpleNamespace):
        return True
    return kind.__module__.partition(".")[0] not in _LEFT_ALONE


def _equal(before: torch.Tensor, now: torch.Tensor) -> bool:
    if before.shape != now.shape or before.dtype != now.dtype or before.device != now.device:
        return False
    return torch.equal(before, now) or torch.allclose(before, now, 0, 0, equal_nan=True)


def _refilled(value: Any, held: Any) -> Any:
    """Return a tensor or an array with what it held: the same one, whose memory others may see too, if
    that fits there."""
    try:
        if isinstance(value, np.ndarray):
            value[...] = held
        else:
            value.detach().copy_(held)
    except (RuntimeError, ValueError):  # it has another shape now, or is expanded
        return held.clone() if isinstance(value, torch.Tensor) else held.copy()
    return value
