"""A task's torch module, and its params: the whole state_dict as named arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import AppError, ProtocolError
from ..randomness.seeded import seeded
from ..randomness.seeds import derive
from .module_layout import layout_of

if TYPE_CHECKING:
    from ..task import Task

__all__ = [
    "Unrecorded",
    "build_module",
    "load_into",
    "load_params",
    "load_some",
    "owners_of",
    "params_of_module",
    "to_array",
    "to_tensor",
]

# Dtypes that NumPy lacks: the integer of the same width that both can view, and its name.
_FOREIGN: dict[torch.dtype, tuple[torch.dtype, Any]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    torch.float8_e4m3fnuz: (torch.uint8, ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2fnuz: (torch.uint8, ml_dtypes.float8_e5m2fnuz),
}
_BACK = {np.dtype(kind): (torch_dtype, via) for torch_dtype, (via, kind) in _FOREIGN.items()}


class Unrecorded:
    """A context that autograd records nothing in, as `torch.no_grad()`, which takes 3 us: as much as a
    small model's step. An object is for one block at a time.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *error: object) -> None:
        torch._C._set_grad_enabled(self._before)


def build_module(task: Task, seed: int) -> torch.nn.Module:
    """Return the task's module as it is before the first round, the same for the same seed.

    Raises:
        AppError: `model` gives something else.
    """
    with seeded(derive(seed, "model")):
        module = task.model()
    if not isinstance(module, torch.nn.Module):
        raise AppError(f"model must return a torch.nn.Module, got a {type(module).__name__}")
    return module


def params_of_module(module: torch.nn.Module, *, copy: bool = True) -> dict[str, NDArray[Any]]:
    """Return a module's parameters and buffers by name, in the order of its state_dict.

    With `copy` the arrays own their memory; without, they may share it with the module (on the
    CPU) and change when it is trained on.
    """
    tensors = layout_of(module).state
    return {name: to_array(tensor, copy=copy) for name, tensor in tensors.items()}


def to_array(tensor: torch.Tensor, *, copy: bool = False) -> NDArray[Any]:
    """Return a tensor's values as an array; without `copy` perhaps over the same memory."""
    if tensor.dtype in _FOREIGN:
        via, kind = _FOREIGN[tensor.dtype]
        array = tensor.detach().view(via).numpy(force=True).view(kind)
    else:
        array = tensor.numpy(force=True)
    return np.array(array, order="C") if copy else np.asarray(array, order="C")


def load_params(module: torch.nn.Module, params: Mapping[str, NDArray[Any]]) -> None:
    """Set a module's parameters and buffers.

    Raises:
        ProtocolError: a name, a shape or a dtype is not the module's; nothing is set then.
    """
    load_into(layout_of(module).state, params)


def load_into(targets: Mapping[str, torch.Tensor], params: Mapping[str, NDArray[Any]]) -> None:
    """Set all tensors of a module's state_dict; raises as `load_params`."""
    if list(targets) != list(params):
        missing = [name for name in targets if name not in params]
        extra = [name for name in params if name not in targets]
        raise ProtocolError(
            f"the params are not this model's: missing {missing[:5]}, unknown {extra[:5]}"
            if missing or extra
            else "the params are not in this model's order"
        )
    _copy_into(targets, params)


def load_some(module: torch.nn.Module, params: Mapping[str, NDArray[Any]]) -> None:
    """Set some of a module's parameters and buffers; the others stay.

    Raises:
        ProtocolError: a name, a shape or a dtype is not the module's; nothing is set then.
    """
    _copy_into(layout_of(module).state, params)


def _copy_into(targets: Mapping[str, torch.Tensor], params: Mapping[str, NDArray[Any]]) -> None:
    sources = {name: to_tensor(array) for name, array in params.items()}
    for name, source in sources.items():
        if name not in targets:
            raise ProtocolError(f"the params are not this model's: unknown {name!r}")
        target = targets[name]
        if source.shape != target.shape or source.dtype != target.dtype:
            raise ProtocolError(
                f"tensor {name!r} is {source.dtype} {tuple(source.shape)}, the model's is "
                f"{target.dtype} {tuple(target.shape)}"
            )
    with Unrecorded():
        for name, source in sources.items():
            targets[name].copy_(source)


def owners_of(module: torch.nn.Module) -> dict[str, str]:
    """Return, for each name of the state_dict, the param or buffer that it is: tied weights have
    several names, and are known by the first."""
    named = [*module.named_parameters(), *module.named_buffers()]
    names = {id(tensor): name for name, tensor in reversed(named)}
    return {name: names[id(t)] for name, t in module.state_dict(keep_vars=True).items()}


def to_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor over an array's memory; it is only read."""
    if array.dtype in _BACK:
        dtype, via = _BACK[array.dtype]
        whole = np.int16 if via is torch.int16 else np.uint8
        return _shared(array.view(whole)).view(dtype)
    return _shared(array)


def _shared(array: NDArray[Any]) -> torch.Tensor:
    if array.flags.writeable:
        return torch.from_numpy(array)
    if array.size == 0:
        return torch.from_numpy(array.copy())
    # torch warns about read-only memory; nobody writes to this tensor.
    interface = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    holder = _Holder(interface, array)
    return torch.from_numpy(np.asarray(holder))


class _Holder:
    """Lends an array's memory as if it were writable, and keeps the array alive."""

    def __init__(self, interface: dict[str, Any], array: NDArray[Any]) -> None:
        self.__array_interface__ = interface
        self._array = array
