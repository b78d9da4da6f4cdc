"""An algorithm's corrections of a client's training steps, on each process that makes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace

import torch

from ...errors import DataError
from ...machine.accelerators import widest_float
from ...strategies.algorithms.auxiliary_names import auxiliary_name, kind_of
from ..local_round import Answer, Tensors
from ..loop.optimizers import Slots
from .algorithms import LocalAlgorithm
from .objective import Loss, TrainingStep, features_of

__all__ = ["Corrections", "checked_answer", "learned_in", "names_of", "zero_client_state"]


class Corrections:
    """Corrects a module's steps by the client state and the auxiliary tensors.

    Attributes:
        slots: what the optimizer begins with; None: with new ones.
        steps: how many steps there were.
        has_loss: whether the algorithm has a loss of its own, `losses`.
    """

    def __init__(
        self, algorithm: LocalAlgorithm, module: torch.nn.Module, shared: Tensors, kept: Tensors
    ) -> None:
        """Begin with a module that has its params."""
        self._algorithm = algorithm
        self._learned = learned_in(module)
        self._starts = {name: param.detach().clone() for name, param in self._learned.items()}
        self._shared, self._kept = dict(shared), dict(kept)
        self.has_loss = algorithm.has_loss
        self._module = module
        self._watched = ExitStack()
        self._features: Tensors = {}
        self._begun: Tensors = {}
        if self.has_loss:
            self._features = self._watched.enter_context(features_of(module, algorithm.features))
            named = [*module.named_parameters(), *module.named_buffers()]
            self._begun = {name: tensor.detach().clone() for name, tensor in named}
        self.slots: Slots | None = None
        if algorithm.slot is not None:
            self.slots = [
                [shared[auxiliary_name(algorithm.slot, n)].clone() for n in self._learned]
            ]
        self.steps = 0

    @classmethod
    def empty(cls, algorithm: LocalAlgorithm, module: torch.nn.Module) -> Corrections:
        """Return the corrections of a process that receives the values later."""
        params = {name: param.detach() for name, param in learned_in(module).items()}
        shared = {
            auxiliary_name(kind, name): torch.zeros_like(param)
            for kind in (algorithm.steers, algorithm.slot)
            if kind is not None
            for name, param in params.items()
        }
        device = next((param.device for param in params.values()), torch.device("cpu"))
        return cls(algorithm, module, shared, zero_client_state(algorithm, params, device))

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield what all processes need to make the same steps, to be read or written."""
        yield from self._starts.values()
        kinds = ((self._algorithm.keeps, self._kept), (self._algorithm.steers, self._shared))
        for kind, found in kinds:
            for name, param in self._learned.items() if kind is not None else ():
                key = auxiliary_name(str(kind), name)
                found[key] = found[key].to(_kept_dtype(param))
                yield found[key]
        for slot in self.slots or ():
            yield from slot

    def losses(
        self, inputs: torch.Tensor, outputs: torch.Tensor, targets: torch.Tensor, task_loss: Loss
    ) -> torch.Tensor:
        """Return each example's loss, after the module's forward pass."""
        return self._algorithm.loss(
            TrainingStep(
                module=self._module,
                inputs=inputs,
                outputs=outputs,
                targets=targets,
                features=dict(self._features),
                start=self._begun,
                client_state=self._kept,
                shared=self._shared,
                task_loss=task_loss,
            )
        )

    def close(self) -> None:
        """Stop looking at the module."""
        self._watched.close()

    def correct(self) -> None:
        """Correct the gradients of the step that is about to be made."""
        self.steps += 1
        for name, param in self._learned.items():
            if param.grad is not None:
                own, shared = names_of(self._algorithm, name)
                param.grad = self._algorithm.corrected(
                    param.grad,
                    param.detach(),
                    self._starts[name],
                    self._kept.get(own),
                    self._shared.get(shared),
                ).to(param.dtype)


def learned_in(module: torch.nn.Module) -> Mapping[str, torch.nn.Parameter]:
    """Return the params that gradients move."""
    return {name: param for name, param in module.named_parameters() if param.requires_grad}


def names_of(algorithm: LocalAlgorithm, name: str) -> tuple[str, str]:
    """Return the names of a tensor's own and of its shared correction."""
    return auxiliary_name(algorithm.keeps or "", name), auxiliary_name(algorithm.steers or "", name)


def zero_client_state(
    algorithm: LocalAlgorithm, learned: Tensors, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return the client state before the first round."""
    made: dict[str, torch.Tensor] = {}
    if algorithm.keeps is not None:
        for name, start in learned.items():
            begun = algorithm.begins(start).to(_kept_dtype(start), copy=True)
            made[auxiliary_name(algorithm.keeps, name)] = begun
    for name, shape in algorithm.state.items():
        made[name] = torch.zeros(shape, dtype=widest_float(device), device=device)
    return made


def checked_answer(
    answer: Answer, algorithm: LocalAlgorithm, *, declared: Tensors, shared: Tensors, axes: int = 0
) -> Answer:
    """Return an answer without auxiliary tensors that nobody asked for, and whose client state is
    what the algorithm declares, in the dtypes of that.

    `declared` is the client state before the first round, `shared` the auxiliary tensors that came,
    and `axes` is 1 where tensors have a leading client axis.

    Raises:
        DataError: it has other tensors, or of other shapes.
    """
    for name in answer.auxiliary.keys() - shared.keys():
        if kind_of(name, algorithm.auxiliary) is None:
            raise DataError(
                f"the algorithm answers with the auxiliary tensor {name!r}, which nobody sent"
            )
    auxiliary = {name: each for name, each in answer.auxiliary.items() if name in shared}
    kept: dict[str, torch.Tensor] = {}
    for name, tensor in answer.client_state.items():
        like = declared.get(name)
        if like is None:
            raise DataError(
                f"the algorithm keeps {name!r}, which LocalAlgorithm.keeps and state do not declare"
            )
        if tensor.shape[axes:] != like.shape:
            raise DataError(
                f"the algorithm keeps {name!r} with shape {tuple(tensor.shape[axes:])}, declared as "
                f"{tuple(like.shape)}"
            )
        kept[name] = tensor.to(like.dtype)
    return replace(answer, auxiliary=auxiliary, client_state=kept)


def _kept_dtype(tensor: torch.Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
