"""One torch module for all the sites of a process, as new for each of them."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord

from ..flower import arrays_to_params, params_to_arrays
from ..module_params import build_module, load_params, params_of_module
from ..strategies.algorithm import Params
from ..task import Task

__all__ = ["WarmModule"]


class WarmModule:
    """A task's module, built once and kept on its device.

    Guarantees: what one site's training leaves in the module (params, buffers, gradients) is
        not seen by the next one.
    """

    def __init__(self, task: Task, device: str) -> None:
        self._task = task
        self._device = device
        self._seed: int | None = None
        self._module: torch.nn.Module | None = None
        self._built: Params = {}
        """The params before the first round, once somebody needs them."""
        self._unsent: dict[str, torch.Tensor] = {}
        """Buffers that are not part of the params (`persistent=False`), as they were built."""

    def with_some(self, params: Params, *, seed: int) -> torch.nn.Module:
        """Return the module with these params, and the others as they were built.

        Raises:
            ProtocolError: a tensor is another model's.
        """
        if not self._built or seed != self._seed:
            self._built = params_of_module(build_module(self._task, seed))
        return self.with_params(params_to_arrays({**self._built, **params}), seed=seed)

    def with_params(self, arrays: ArrayRecord, *, seed: int) -> torch.nn.Module:
        """Return the module with these params; `seed` is the run's, and decides what is not sent.

        Raises:
            ProtocolError: the params are another model's.
        """
        if self._module is None or seed != self._seed:
            self._module = build_module(self._task, seed).to(self._device)
            self._seed = seed
            sent = self._module.state_dict()
            self._unsent = {
                name: buffer.clone()
                for name, buffer in self._module.named_buffers()
                if name not in sent
            }
        load_params(self._module, arrays_to_params(arrays))
        for name, buffer in self._module.named_buffers():
            if name in self._unsent:
                buffer.copy_(self._unsent[name])
        self._module.zero_grad(set_to_none=True)
        return self._module
