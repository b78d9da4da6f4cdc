"""Watches a training step for whatever could depend on where values lie in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from .step_trace import OperationWatch, backward_steps

__all__ = ["MemoryWatch"]

_PLACES = frozenset(
    {
        *("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter"),
        *("set_", "resize_", "resize_as_", "_resize_output_"),
    }
)
"""Operations of torch whose arguments are places in memory."""
_OUT_OF_TORCH = frozenset(
    ("__array__", "__dlpack__", "data_ptr", "numpy", "storage", "tolist", "untyped_storage")
)
"""Methods of a tensor by which values or memory leave torch."""
_HOOKS = frozenset(("register_hook", "register_post_accumulate_grad_hook"))
"""Methods of a tensor by which the backward pass comes to call somebody's code."""
_READS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_DETACH = torch.ops.aten.detach.default
_COPIES = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)


class MemoryWatch(OperationWatch):
    """Notes an operation whose results may depend on memory, or that reads a value into Python, where
    anything may depend on it. What draws random numbers, which lie in the order of memory, is for a
    trace of the step to note.

    A change of a view, or of a copy, is such an operation: it reaches other tensors, or not, as `reshape`
    gives a view in one memory layout and a copy in another, and `contiguous` the tensor itself or a copy.

    Attributes:
        found: the first one's name, "" if there was none.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""
        self._looks = True
        self._torchs_own = False
        self._viewed: set[StorageWeakRef] = set()
        self._leaks = _Leaks(self)

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._leaks.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        self._leaks.__exit__(*error)  # type: ignore[no-untyped-call]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def end_forward(self, losses: torch.Tensor) -> None:
        """Say that what follows differentiates these losses: as far as all its steps are torch's, they
        may use memory as they like."""
        steps = backward_steps(losses)
        own = torch.autograd.function.BackwardCFunction
        self._torchs_own = not any(isinstance(step, own) for step in steps)

    def note(self, name: str) -> None:
        """Note an operation, or a method of a tensor in somebody's code."""
        if self._looks and not self.found:
            self.found = name

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        looks, self._looks = self._looks, False  # what follows here is nobody's code
        try:
            by_memory = _is_by_memory(func, args, kwargs) and not self._torchs_own
            result = func(*args, **kwargs)
            by_memory |= self._changes_view(func, args, kwargs, result) and not self._torchs_own
        finally:
            self._looks = looks
        if by_memory:
            self.note(str(func))
        return result

    def _changes_view(self, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> bool:
        """Note which memory has views or is a copy, and return whether an operation changes some of it."""
        schema = func._schema
        if schema.is_mutable:
            named = zip(schema.arguments, args, strict=False)
            changed = [value for said, value in named if _is_written(said)]
            changed += [
                kwargs[s.name] for s in schema.arguments if _is_written(s) and s.name in kwargs
            ]
            memory: list[StorageWeakRef] = []
            tree_map_only(torch.Tensor, lambda each: memory.append(_memory(each)), changed)
            return any(each in self._viewed for each in memory)
        has_views = any(said.alias_info for said in schema.returns) and func is not _DETACH
        if has_views or func in _COPIES:
            tree_map_only(torch.Tensor, lambda each: self._viewed.add(_memory(each)), result)
        return False


class _Leaks(TorchFunctionMode):
    def __init__(self, watch: MemoryWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _OUT_OF_TORCH or name in _HOOKS:
            self._watch.note(name)
        return func(*args, **(kwargs or {}))


def _is_by_memory(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operation, before it runs, says places in memory, reads values, or is not one
    of torch's own."""
    if func.namespace != "aten" or any(tag in func.tags for tag in _READS):
        return True
    name = func._schema.name.partition("::")[2]
    if name == "as_strided_" and len(args) == 3 and not kwargs:
        # Torch's mean over an image says so how the one value that is left of each channel lies.
        old, shape, strides = args
        each = zip(shape, old.stride(), strides, strict=True)
        return old.shape != torch.Size(shape) or any(n > 1 and a != b for n, a, b in each)
    return name in _PLACES


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _memory(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
