"""The optimizer of one client's round: it begins anew with every round.

Each rule is elementwise in (params, gradients, slots): it works on one client's tensors and,
unchanged, on tensors with a leading client axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..parallel.sharded_tensors import local_of
from ..settings import TrainingSettings

__all__ = ["LocalOptimizer", "Slots", "descend", "new_slots"]

Tensors = Sequence[torch.Tensor]
Slots = Sequence[list[torch.Tensor]]
"""What an optimizer remembers: lists parallel to the params (momentum; first, second moment)."""


def new_slots(params: Tensors, settings: TrainingSettings) -> Slots:
    """Return the slots before the first step: zeros in the shapes of the params."""
    count = {"sgd": int(settings.momentum > 0), "lion": 1}.get(settings.optimizer, 2)
    return [[torch.zeros_like(param) for param in params] for _ in range(count)]


def descend(
    params: Tensors, gradients: Tensors, slots: Slots, settings: TrainingSettings, *, step: int
) -> None:
    """Make an optimizer's step, in place; the gradients may be overwritten.

    `step` counts from 1.
    Source: momentum as in Sutskever et al. 2013 with the learning rate outside of it, Kingma and
        Ba 2015 (Adam, algorithm 1), Loshchilov and Hutter 2019 (AdamW, algorithm 2), Chen et al.
        2023 (Lion, algorithm 2).
    """
    if params:
        with torch.no_grad():
            _descend(list(params), list(gradients), slots, settings, step)


def _descend(
    params: list[torch.Tensor],
    gradients: list[torch.Tensor],
    slots: Slots,
    settings: TrainingSettings,
    step: int,
) -> None:
    rate, decay = settings.learning_rate_now(), settings.weight_decay
    if settings.optimizer in ("adamw", "lion") and decay:
        torch._foreach_mul_(params, 1 - rate * decay)
    elif decay:
        torch._foreach_add_(gradients, params, alpha=decay)
    if settings.optimizer == "sgd":
        if slots:
            torch._foreach_mul_(slots[0], settings.momentum)
            torch._foreach_add_(slots[0], gradients)
            gradients = slots[0]
        torch._foreach_add_(params, gradients, alpha=-rate)
        return
    if settings.optimizer == "lion":
        towards = torch._foreach_lerp(slots[0], gradients, 1 - settings.beta_1)
        torch._foreach_add_(params, torch._foreach_sign(towards), alpha=-rate)
        torch._foreach_lerp_(slots[0], gradients, 1 - settings.beta_2)
        return
    first, second = slots
    torch._foreach_lerp_(first, gradients, 1 - settings.beta_1)
    torch._foreach_mul_(second, settings.beta_2)
    torch._foreach_addcmul_(second, gradients, gradients, value=1 - settings.beta_2)
    scale = torch._foreach_sqrt(second)
    torch._foreach_div_(scale, (1 - settings.beta_2**step) ** 0.5)
    torch._foreach_add_(scale, settings.epsilon)
    torch._foreach_addcdiv_(params, first, scale, value=-rate / (1 - settings.beta_1**step))


class LocalOptimizer:
    """`descend` for one client's module and its `.grad`s, with the methods of torch's Optimizer.

    It is not one of torch's classes: making one of those loads torch's compiler, which takes a second.

    Attributes:
        param_groups: what torch's GradScaler looks at.
    """

    def __init__(
        self,
        params: list[torch.nn.Parameter],
        settings: TrainingSettings,
        slots: Slots | None = None,
    ) -> None:
        """Begin with these slots, which the steps change, instead of new ones."""
        self.param_groups = [{"params": params}]
        self._params = params
        self._sharded = any(hasattr(param, "to_local") for param in params)
        self._settings = settings
        if slots is None:
            held = [local_of(param.detach()) for param in params] if self._sharded else params
            slots = new_slots(held, settings)
        self._slots = slots
        self._steps = 0

    @property
    def slots(self) -> Slots:
        """What it remembers, parallel to the params."""
        return self._slots

    @property
    def steps(self) -> int:
        """How many steps it has made."""
        return self._steps

    def resume(self, steps: int) -> None:
        """Continue after this many steps, with slots that the caller has set."""
        self._steps = steps

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for param in self._params:
            param.grad = None

    def step(self) -> None:
        """Make a step with the params that have a gradient."""
        self._steps += 1
        params: list[torch.Tensor] = list(self._params)
        slots = self._slots
        gradients = [param.grad for param in params if param.grad is not None]
        if len(gradients) < len(params):
            used = [place for place, param in enumerate(params) if param.grad is not None]
            params = [params[place] for place in used]
            slots = [[slot[place] for place in used] for slot in slots]
        if self._sharded:
            params = [local_of(param.detach()) for param in params]
            gradients = [local_of(gradient) for gradient in gradients]
        descend(params, gradients, slots, self._settings, step=self._steps)
