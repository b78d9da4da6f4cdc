"""One torch module for all the sites of a process, as new for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from flwr.app import ArrayRecord

from ..flower.messages import arrays_to_params, params_to_arrays
from ..strategies.algorithms.algorithm import Params
from ..task import Task
from .module_layout import layout_of
from .module_params import build_module, load_into, load_some, params_of_module
from .module_state import PythonState

__all__ = ["WarmModule"]


class WarmModule:
    """A task's module, built once and kept on its device.

    Guarantees: what one site's training leaves in the module (params, buffers, gradients, plain
        attributes) or in the loss is not seen by the next one.
    """

    def __init__(
        self,
        task: Task,
        device: str,
        prepare: Callable[[torch.nn.Module], torch.nn.Module] = lambda module: module,
    ) -> None:
        """`prepare` changes how a module computes, once it is on its device."""
        self._task = task
        self._prepare = prepare
        self._device = device
        self._built_for: tuple[int, int] | None = None
        self._module: torch.nn.Module | None = None
        self._python: PythonState | None = None
        self._loss = PythonState(task.loss, buffers=True)
        self._built: dict[int, Params] = {}
        """The params before the first round, by the run's seed; made when first needed."""
        self._still: dict[str, torch.Tensor] = {}
        """Buffers of a frozen base, as they were built."""
        self._unsent: dict[str, torch.Tensor] = {}
        """Buffers that are not part of the params (`persistent=False`), as they were built."""
        self._state: Mapping[str, torch.Tensor] = {}
        """The module's `state_dict` as `fresh` found it."""

    def with_some(self, params: Params, *, seed: int) -> torch.nn.Module:
        """Return the module with these params, and the others as they were built.

        Raises:
            ProtocolError: a tensor is another model's.
        """
        if seed not in self._built:
            self._built = {seed: params_of_module(build_module(self._task, seed))}
        return self.with_params(params_to_arrays({**self._built[seed], **params}), seed=seed)

    def with_params(
        self, arrays: ArrayRecord, *, seed: int, generation: int = 0
    ) -> torch.nn.Module:
        """Return the module with these params; `seed` is the run's, and decides what is not sent.

        A module of another `generation` is built anew: those who train it have changed.

        Raises:
            ProtocolError: the params are another model's.
        """
        module = self.fresh(seed=seed, generation=generation)
        load_into(self._state, arrays_to_params(arrays))
        return module

    def with_adapters(
        self, params: Params, *, seed: int, check: Callable[[torch.nn.Module], None]
    ) -> torch.nn.Module:
        """Return the module with these params, and the frozen rest as it was built.

        `check` sees a module that was just built.

        Raises:
            ProtocolError: a tensor is another model's.
        """
        if self._built_for != (seed, 0):
            check(self.fresh(seed=seed))
        module = self.fresh(seed=seed)
        buffers = [*module.named_buffers()]
        self._still = self._still or {n: b.clone() for n, b in buffers if n not in params}
        for name, buffer in buffers:
            if name in self._still:
                buffer.copy_(self._still[name])
        load_some(module, params)
        return module

    def fresh(self, *, seed: int, generation: int = 0) -> torch.nn.Module:
        """Return the module with unspecified params, for a caller that sets them."""
        if self._module is None or self._built_for != (seed, generation):
            self._module = self._prepare(build_module(self._task, seed).to(self._device))
            self._built_for = seed, generation
            self._python = PythonState(self._module)
            self._still = {}
            sent = self._module.state_dict()
            self._unsent = {
                name: buffer.clone()
                for name, buffer in self._module.named_buffers()
                if name not in sent
            }
        if self._unsent:
            for name, buffer in self._module.named_buffers():
                if name in self._unsent:
                    buffer.copy_(self._unsent[name])
        if self._python is not None:
            self._python.restore()
        self._loss.restore()
        layout = layout_of(self._module)
        self._state = layout.state
        for param in layout.params:
            param.grad = None
        return self._module
