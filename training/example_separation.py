"""Checks, before DP-SGD, that the loss of each example depends on that example alone.

Clipping each example's gradient bounds what the example adds to a step only if no example
influences the gradients of others: neither within a batch, through the model or the loss, nor
from one batch to the next, through state that a module keeps.

Source: Abadi et al., "Deep learning with differential privacy" (2016), section 3.1.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

import torch

from ..errors import DataError
from ..randomness.seeded import seeded

if TYPE_CHECKING:
    from ..task import Task

__all__ = ["EXAMINED", "check_separation", "check_unchanged", "example_losses", "tensors_held"]

EXAMINED = 8
"""How many examples a batch of the examination has."""
FAR = 100.0
"""What the values of a replaced example are multiplied by."""
REMEDY = (
    "under example-level privacy, no example may have a part in the loss of another: use "
    "group or layer norm, and a loss that treats every example alone"
)


def example_losses(
    task: Task, module: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Return the loss of every example.

    Raises:
        DataError: the loss does not give one value per example.
    """
    losses = task.loss(module(inputs), targets)
    if losses.shape != (len(targets),):
        raise DataError(
            f"loss must give one value per example, shape ({len(targets)},), got "
            f'{tuple(losses.shape)}; for torch\'s losses say reduction="none"'
        )
    return losses


def tensors_held(
    module: torch.nn.Module, earlier: dict[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Return copies of a module's params and buffers, by name; in the memory of `earlier` ones."""
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if earlier is None:
        return {name: each.detach().clone() for name, each in held.items()}
    for name, copy_ in earlier.items():
        copy_.copy_(held[name].detach())
    return earlier


def check_unchanged(module: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> None:
    """Check that the module still holds exactly these tensors, unchanged.

    Raises:
        DataError: one was changed, added or removed: it may hold data of examples, without noise.
    """
    now = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name in [*before, *now]:
        if name not in now or name not in before or not _same(now[name], before[name]):
            raise DataError(
                f"the model changes its tensor {name!r} while it computes, and DP-SGD adds no noise "
                "to that: under example-level privacy a model must change neither params nor "
                "buffers; use group or layer norm in the place of running statistics"
            )


def check_separation(
    task: Task, module: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> None:
    """Check by trials that no example influences another's loss.

    The module computes some real examples, and random ones of their shape, in training mode. If one
    is replaced or left out, the losses of the others must stay. No loss may have a gradient by
    another's input or output, and no batch may change the losses of the next one.

    Shapes: inputs (at least 1, ...), targets likewise.
    Raises:
        DataError: an example influences another's loss, or the module changes its own tensors.
    """
    trial = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(0)
    places = torch.linspace(0, len(targets) - 1, EXAMINED).long().to(inputs.device)
    real = inputs[places], targets[places]
    with seeded(0, str(inputs.device)):
        for batch in (real, (_random_like(real[0], generator), real[1].roll(1, 0))):
            _BatchTrial(task, trial, *batch).run(_random_like(real[0], generator))


class _BatchTrial:
    """The examination of one batch."""

    def __init__(
        self, task: Task, module: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor
    ) -> None:
        self._task, self._module = task, module
        self._inputs, self._targets = inputs, targets
        self._device = str(inputs.device)

    def run(self, other: torch.Tensor) -> None:
        """Examine; `other` are inputs that an example is replaced by."""
        self._check_state()
        losses = self._losses()
        for place in (0, EXAMINED - 1):
            for inputs, targets in self._replaced(place, other):
                found = self._losses(inputs, targets)
                after = self._losses()  # what that batch left behind changes nothing
                kept = torch.arange(EXAMINED, device=losses.device) != place
                if not _alike(found[kept], losses[kept]) or not _alike(after, losses):
                    _refuse("replacing an example changes the losses of others")
        self._check_gradients()
        self._check_sizes()

    def _losses(
        self, inputs: torch.Tensor | None = None, targets: torch.Tensor | None = None, seed: int = 0
    ) -> torch.Tensor:
        inputs = self._inputs if inputs is None else inputs
        targets = self._targets if targets is None else targets
        with torch.no_grad(), seeded(seed, self._device):
            return example_losses(self._task, self._module, inputs, targets)

    def _replaced(self, place: int, other: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the batch with another example at a place: a real, a random, and a far one."""
        neighbour = (place + 1) % EXAMINED
        rows = [self._inputs[neighbour], other[place]]
        if other.dtype.is_floating_point:
            rows.append(other[place] * FAR)
        targets = self._targets.clone()
        targets[place] = self._targets[neighbour]
        made = []
        for row in rows:
            inputs = self._inputs.clone()
            inputs[place] = row
            made.append((inputs, targets))
        return made

    def _check_state(self) -> None:
        module = self._module
        before = tensors_held(module)
        self._losses()
        check_unchanged(module, before)

    def _check_gradients(self) -> None:
        """Check that no loss has a gradient by another example's input or output."""
        inputs = self._inputs.clone()
        if inputs.dtype.is_floating_point:
            inputs.requires_grad_()
        with torch.enable_grad(), seeded(0, self._device):
            outputs = self._module(inputs)
            losses = self._task.loss(outputs, self._targets)
            by = [each for each in (inputs, outputs) if _differentiable(each)]
            if not losses.requires_grad or not by:
                return
            for place in (0, EXAMINED - 1):
                found = torch.autograd.grad(losses[place], by, retain_graph=True, allow_unused=True)
                for gradient in found:
                    if gradient is None or len(gradient) != EXAMINED:
                        continue
                    rows = gradient.detach().clone()
                    rows[place] = 0
                    if bool(rows.count_nonzero()):
                        _refuse("an example's loss has a gradient by another example")

    def _check_sizes(self) -> None:
        """Check that losses are the same in a smaller batch; without dropout, which would draw
        other random bits there."""
        modes = {each: each.training for each in self._module.modules()}
        try:
            for each in modes:
                if isinstance(each, torch.nn.modules.dropout._DropoutNd):
                    each.eval()
            if not torch.equal(self._losses(seed=0), self._losses(seed=1)):
                self._module.eval()
            losses, fewer = self._losses(), self._losses(self._inputs[1:], self._targets[1:])
            if not torch.allclose(losses[1:], fewer, rtol=1e-3, atol=1e-5, equal_nan=True):
                _refuse("leaving an example out changes the losses of others")
        finally:
            for each, training in modes.items():
                each.training = training


def _random_like(inputs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return random examples: normal values, or the batch's own whole numbers in another order."""
    if inputs.dtype.is_floating_point:
        drawn = torch.randn(inputs.shape, generator=generator)
        return drawn.to(inputs.device, inputs.dtype)
    order = torch.randperm(inputs.numel(), generator=generator).to(inputs.device)
    return inputs.flatten()[order].view(inputs.shape)


def _differentiable(values: object) -> bool:
    return isinstance(values, torch.Tensor) and values.requires_grad


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether losses are the same: to the last bit on a CPU, whose kernels compute rows alike."""
    if one.device.type == "cpu":
        return _same(one, other)
    return torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.nan_to_num(0.0), other.nan_to_num(0.0)) and torch.equal(
        one.isnan(), other.isnan()
    )


def _refuse(found: str) -> NoReturn:
    raise DataError(f"{found}: {REMEDY}")
