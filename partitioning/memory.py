"""A site's share of a data set: the data are divided once a process, however many sites ask.

A split is cached by what determines it: the rule, the seed, the number of clients and
samples, and the targets' or groups' content if the rule looks at them. Hashing the content takes
time in proportion to the data set, so the hash is remembered too wherever the content cannot
have changed unnoticed: for a NumPy array that cannot be written to, and for a torch tensor, which
counts its changes. Any other array is hashed at each call: a changed one never gets an old split.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigError
from .partition import Partition
from .shares import Indices, Shares

__all__ = ["forget", "share_of"]

SPLITS_KEPT = 4
_lock = threading.RLock()
_splits: OrderedDict[Hashable, Shares] = OrderedDict()
_contents: dict[int, tuple[weakref.ref[Any], Hashable, Hashable]] = {}
"""By an object's id: the object, what it would change with its content, and its content's key."""


def share_of(
    rule: Partition,
    targets: ArrayLike,
    index: int,
    *,
    count: int,
    seed: int,
    groups: ArrayLike | None = None,
) -> Indices:
    """Return one share of `rule.split`; the last splits are remembered.

    Guarantees: time in proportion to the share once the data are divided, if the rule looks at
        no content, or at a tensor or an array that cannot be written to; else to the content.
    Edge cases: a tensor that is changed through a NumPy view of its memory does not count that
        change; so give the view, not the tensor, if that can happen.
    Raises:
        ConfigError: as `Partition.split`, and for an index outside of [0, count).
    """
    if not 0 <= index < count:
        raise ConfigError(f"a site's index must be in [0, {count}), got {index}")
    looked_at = targets if rule.looks_at_targets else groups if rule.looks_at_groups else None
    with _lock:
        content = None if looked_at is None else _content_of(looked_at)
        key = (rule, count, seed, _shape(targets), content)
        if key not in _splits:
            given = None if groups is None else np.asarray(groups)
            _splits[key] = rule.split(np.asarray(targets), count, seed, groups=given)
            if len(_splits) > SPLITS_KEPT:
                _splits.popitem(last=False)
        _splits.move_to_end(key)
        return _splits[key][index].copy()


def forget() -> None:
    """Forget all splits, and with them their memory."""
    with _lock:
        _splits.clear()
        _contents.clear()


def _shape(values: ArrayLike) -> tuple[int, ...]:
    return tuple(values.shape) if hasattr(values, "shape") else np.shape(values)


def _content_of(values: ArrayLike) -> Hashable:
    """Return a key that is equal for equal content only."""
    state = _state_of(values)
    known = _contents.get(id(values))
    if state is not None and known is not None and known[0]() is values and known[1] == state:
        return known[2]
    array = np.asarray(values)
    content = _hash_of(array)
    if state is not None:
        own = id(values)
        reference = weakref.ref(values, lambda _: _contents.pop(own, None))
        _contents[own] = (reference, state, content)
    return content


def _state_of(values: Any) -> Hashable:
    """Return a value that changes with an object's content; None if there is none."""
    if isinstance(values, np.ndarray):
        place = (values.ctypes.data, values.shape, values.strides, values.dtype.str)
        return place if _is_frozen(values) else None
    try:  # a torch tensor, without importing torch
        return (values._version, values.data_ptr(), tuple(values.shape), str(values.dtype))
    except (AttributeError, RuntimeError):  # tensors of inference mode count nothing
        return None


def _is_frozen(array: NDArray[Any]) -> bool:
    """Whether neither the array nor one whose memory it shows can be written to."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner is None or isinstance(owner, bytes)


def _hash_of(array: NDArray[Any]) -> Hashable:
    if array.dtype.hasobject:  # its memory holds pointers
        return "object", array.shape, sha256(repr(array.tolist()).encode()).digest()
    content = np.ascontiguousarray(array).view(np.uint8)
    return array.dtype.str, array.shape, sha256(content.data).digest()
