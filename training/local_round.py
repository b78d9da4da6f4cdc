"""The inputs and results of a round of training, for one client or for many at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

__all__ = ["Answer", "LocalRound", "Tensors", "along"]

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRound:
    """A round at its end.

    Shapes: `starts` and `shared` are (...); the others are (...) too for one client, and
        (clients, ...) for many.

    Attributes:
        starts: params and buffers before the round, by the names that training knows them by.
        trained: the same after it.
        learned: those of them that gradients moved.
        owners: for each name on the wire the one that training knows it by: tied weights have
            several names.
        shared: the auxiliary tensors that came with the params.
        client_state: the client state of earlier rounds, by the names of auxiliary tensors.
        steps: how many steps were made.
        losses: the mean loss on the client's data before the round, if the algorithm needs it.
        momentum: the optimizer's first slot, by name, if it has one.
    """

    starts: Tensors
    trained: Tensors
    learned: frozenset[str]
    owners: Mapping[str, str]
    shared: Tensors
    client_state: Tensors
    steps: torch.Tensor
    losses: torch.Tensor
    momentum: Tensors

    def along(self, numbers: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Return one number a client in a shape that broadcasts with its tensor."""
        return along(numbers, tensor)

    def delta_of(self, name: str) -> torch.Tensor:
        """Return what training added to a tensor."""
        return self.trained[name] - self.starts[name]

    def is_floating(self, name: str) -> bool:
        """Whether a tensor's delta can be scaled: a counter's cannot."""
        tensor = self.starts[name]
        return tensor.is_floating_point() or tensor.is_complex()

    def scaled(self, factor: torch.Tensor, *, names: frozenset[str] | None = None) -> Tensors:
        """Return the tensors with their deltas times a factor a client.

        Without `names` it is for all that are floating-point numbers.
        """
        moved = dict(self.trained)
        for name, tensor in self.trained.items():
            if self.is_floating(name) and (names is None or name in names):
                delta = self.delta_of(name)
                start = self.starts[name]
                moved[name] = (start + delta * along(factor, delta)).to(tensor.dtype)
        return moved

    def squared_delta(self) -> torch.Tensor:
        """Return the squared L2 norm of the learned tensors' delta, a number a client."""
        axes = self.steps.ndim
        squares = [
            self.delta_of(name).abs().to(self.steps.dtype).square().flatten(axes).sum(-1)
            for name in sorted(self.learned)
        ]
        return torch.stack(squares).sum(0) if squares else torch.zeros_like(self.losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a client answers, and what it keeps; shapes as in `LocalRound`.

    `params` are by the names that training knows, `auxiliary` by those on the wire.
    """

    params: Tensors
    auxiliary: Tensors = field(default_factory=dict)
    client_state: Tensors = field(default_factory=dict)


def along(numbers: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return one number per client, in a tensor's dtype and in a shape that broadcasts with it."""
    dtype = tensor.dtype if tensor.is_floating_point() or tensor.is_complex() else numbers.dtype
    return numbers.to(dtype).view(*numbers.shape, *(1,) * (tensor.ndim - numbers.ndim))
