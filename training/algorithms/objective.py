"""The loss of an algorithm of one's own: what it sees of a step, for one client or under vmap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ...errors import DataError
from ...strategies.algorithms.auxiliary_names import of_kind
from ..functional import call_with
from ..local_round import Tensors

__all__ = ["Loss", "Seen", "TrainingStep", "features_of", "seen_under"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a model gives for a batch: its outputs, and those of the named modules in it."""

    outputs: torch.Tensor
    features: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """What a loss is computed from.

    Shapes: `inputs`, `outputs` and `targets` are (batch, ...).

    Attributes:
        features: the outputs of the modules that `LocalAlgorithm.features` names.
        start: params and buffers that the round began with: the global model.
        client_state: what the client keeps, by the names of `LocalAlgorithm.keeps` and `state`.
        shared: the auxiliary tensors that came with the params.
        task_loss: the task's own loss of outputs and targets, (batch,).
    """

    module: torch.nn.Module
    inputs: torch.Tensor
    outputs: torch.Tensor
    targets: torch.Tensor
    features: Tensors
    start: Tensors
    client_state: Tensors
    shared: Tensors
    task_loss: Loss

    def task_losses(self) -> torch.Tensor:
        """Return the task's loss of each example, (batch,)."""
        return self.task_loss(self.outputs, self.targets)

    def kept(self, kind: str) -> Tensors:
        """Return the client's tensors of a kind, by the names of the params they belong to."""
        return of_kind(kind, self.client_state)

    def under(self, params: Tensors) -> Seen:
        """Return what other params give for the same inputs, in evaluation mode and without a
        gradient; tensors that are not among `params` are those of the global model."""
        tensors = {**self.start, **params}
        return seen_under(self.module, tensors, self.inputs, tuple(self.features))


def seen_under(
    module: torch.nn.Module, tensors: Tensors, inputs: torch.Tensor, names: Sequence[str]
) -> Seen:
    """Return what a module gives with these params and buffers, in evaluation mode."""
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        device = inputs.device.type
        with (
            torch.no_grad(),
            torch.autocast(device, enabled=False),
            features_of(module, names) as found,
        ):
            outputs = call_with(module, dict(tensors), inputs)
    finally:
        for each, mode in modes:
            each.training = mode
    return Seen(outputs, dict(found))


@contextmanager
def features_of(
    module: torch.nn.Module, names: Sequence[str]
) -> Iterator[Mapping[str, torch.Tensor]]:
    """Give a mapping that every forward pass within the block fills: module's name -> its output.

    Raises:
        DataError: the model has no such module.
    """
    found: dict[str, torch.Tensor] = {}
    handles = []
    try:
        for name in names:
            try:
                inner = module.get_submodule(name)
            except AttributeError:
                known = ", ".join(each for each, _ in module.named_modules() if each)
                raise DataError(
                    f"the model has no module {name!r}, whose output the algorithm looks at; it "
                    f"has {known or 'none'}"
                ) from None
            handles.append(inner.register_forward_hook(_noting(found, name)))
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _noting(found: dict[str, torch.Tensor], name: str) -> Callable[..., None]:
    def note(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        found[name] = output

    return note
