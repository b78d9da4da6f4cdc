"""One task's module for many clients at once: params with a leading client axis.

A client's step is written for one client, differentiated by `torch.func.grad` and then mapped
over the clients by `torch.func.vmap`: each layer runs once, as one kernel, for all of them.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch.func import functional_call, grad, vmap

from ...errors import DataError
from ...module_params import owners_of
from ...randomness import seeded
from ...task import Task
from .client_dropout import dropout_calls

__all__ = ["StackedModule", "Step", "Tensors"]

Tensors = dict[str, torch.Tensor]


class Step(NamedTuple):
    """What one step gives: `gradients` by param (clients, ...), `losses` (clients, batch) and
    `outputs` (clients, batch, ...)."""

    gradients: Tensors
    losses: torch.Tensor
    outputs: torch.Tensor


class StackedModule:
    """A module whose trained params and buffers are given from outside, a row a client.

    Attributes:
        module: one client's.
        probe: the inputs that it was tried with.
        trained: the params that training changes, as the module holds them.
        drops_out: whether the module applies dropout.
        mixes_examples: whether an example's output depends on the others of its batch.
        example_bytes: what the outputs of all layers take for one example.
        owners: for each name of the state_dict the param or buffer that it is: tied weights have
            several names.
    """

    def __init__(
        self, task: Task, module: torch.nn.Module, probe: torch.Tensor, *, precision: str
    ) -> None:
        """`probe` are three different inputs of the task: the module is tried with them.

        Raises:
            whatever the module raises on them.
        """
        self._task = task
        self.probe = probe
        self.module = module.train()
        self._autocast = torch.bfloat16 if precision == "bf16" else None
        self.trained = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}
        self._fixed = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}
        self.buffers = dict(module.named_buffers())
        self._device = probe.device
        self.drops_out, self.mixes_examples, self.example_bytes = _examined(module, probe)
        self.owners = owners_of(module)
        self._mapped = vmap(
            grad(self._loss_of_one, has_aux=True), in_dims=(0, 0, 0, 0, 0), randomness="different"
        )

    def stack(self, clients: int) -> tuple[Tensors, Tensors]:
        """Return the trained params and the buffers, a row for each of `clients`."""
        return (
            {name: _repeat(tensor, clients) for name, tensor in self.trained.items()},
            {name: _repeat(tensor, clients) for name, tensor in self.buffers.items()},
        )

    def step(
        self,
        params: Tensors,
        buffers: Tensors,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
    ) -> Step:
        """Return the gradients of each client's weighted loss; buffers are updated in place.

        Shapes: inputs (clients, batch, ...), targets likewise, weights (clients, batch).
        """
        with torch.autocast(self._device.type, self._autocast, enabled=bool(self._autocast)):
            gradients, (losses, outputs) = self._mapped(params, buffers, inputs, targets, weights)
        return Step(gradients, losses, outputs)

    def example_gradients(
        self, params: Tensors, inputs: torch.Tensor, targets: torch.Tensor
    ) -> Tensors:
        """Return the gradient of every single example's loss, of a module without buffers.

        Shapes: inputs (clients, batch, ...), targets likewise; gradients (clients, batch, ...).
        """
        ones = torch.ones(1, device=self._device)

        def loss_of(params: Tensors, example: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return self._loss_of_one(params, {}, example[None], target[None], ones)[0]

        of_batch = vmap(grad(loss_of), in_dims=(None, 0, 0), randomness="different")
        gradients: Tensors = vmap(of_batch, randomness="different")(params, inputs, targets)
        return gradients

    def _loss_of_one(
        self,
        params: Tensors,
        buffers: Tensors,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Compute one client's weighted loss, its examples' losses and the outputs."""
        everything = {**params, **self._fixed, **buffers}
        outputs: Any = functional_call(self.module, everything, (inputs,))
        if self._autocast is not None and outputs.dtype == self._autocast:
            outputs = outputs.float()
        losses = self._task.loss(outputs, targets)
        if losses.shape != weights.shape:
            raise DataError(
                f"loss must give one value per example, shape {tuple(weights.shape)}, got "
                f'{tuple(losses.shape)}; for torch\'s losses say reduction="none"'
            )
        return (losses * weights).sum(), (losses.detach(), outputs.detach())


def _repeat(tensor: torch.Tensor, clients: int) -> torch.Tensor:
    return tensor.detach().unsqueeze(0).expand(clients, *tensor.shape).clone()


def _examined(module: torch.nn.Module, probe: torch.Tensor) -> tuple[bool, bool, int]:
    """Say whether the module drops out, whether it mixes a batch's examples, and what the
    outputs of its layers take for one example."""
    norms = torch.nn.modules.batchnorm._BatchNorm
    mixes = any(isinstance(each, norms) and each.training for each in module.modules())
    trial = copy.deepcopy(module)
    sizes: list[int] = []
    for layer in trial.modules():
        layer.register_forward_hook(lambda _, inputs, made: sizes.append(_bytes_of(made)))
    with torch.no_grad(), dropout_calls() as rates:
        first, other = (_first_output(trial, probe[[0, place]]) for place in (1, 2))
    if first.dtype.is_floating_point:
        mixes = mixes or not torch.allclose(first, other, rtol=1e-4, atol=1e-5, equal_nan=True)
    return bool(rates), mixes, sum(sizes) // 4  # two batches of two


def _bytes_of(made: object) -> int:
    return made.numel() * made.element_size() if isinstance(made, torch.Tensor) else 0


def _first_output(module: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with seeded(0, str(inputs.device)):
        outputs: torch.Tensor = module(inputs)
    return outputs[0]
