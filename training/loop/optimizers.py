"""The optimizer of one client's round: it begins anew with every round.

Each rule is elementwise in (params, gradients, slots): it works on one client's tensors and,
unchanged, on tensors with a leading client axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ...errors import DataError
from ..module_params import Unrecorded
from ..parallel.sharded_tensors import local_of
from ..settings import TrainingSettings

__all__ = ["LocalOptimizer", "Optimizer", "Slots", "descend", "local_optimizer", "new_slots"]

Tensors = Sequence[torch.Tensor]
Slots = Sequence[list[torch.Tensor]]
"""What an optimizer remembers: lists parallel to the params (momentum; first, second moment)."""


def new_slots(params: Tensors, settings: TrainingSettings) -> Slots:
    """Return the slots before the first step: zeros in the shapes of the params.

    Raises:
        DataError: the optimizer is one of torch's classes, which keep what they remember themselves.
    """
    if settings.is_torchs:
        raise DataError(
            f"training.optimizer {settings.optimizer!r} is a class of torch, for the params of one "
            "client that trains without DP-SGD"
        )
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
        with Unrecorded():
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
        if slots and _takes_fused([*params, *gradients, *slots[0]]):
            torch._fused_sgd_(
                params,
                gradients,
                slots[0],
                lr=rate,
                momentum=settings.momentum,
                weight_decay=0.0,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )
            return
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
    if _takes_fused([*params, *gradients, *first, *second]):
        steps = [torch.tensor(float(step))] * len(params)
        torch._fused_adam_(
            params,
            gradients,
            first,
            second,
            [],
            steps,
            lr=rate,
            beta1=settings.beta_1,
            beta2=settings.beta_2,
            weight_decay=0.0,
            eps=settings.epsilon,
            amsgrad=False,
            maximize=False,
        )
        return
    torch._foreach_lerp_(first, gradients, 1 - settings.beta_1)
    torch._foreach_mul_(second, settings.beta_2)
    torch._foreach_addcmul_(second, gradients, gradients, value=1 - settings.beta_2)
    scale = torch._foreach_sqrt(second)
    torch._foreach_div_(scale, (1 - settings.beta_2**step) ** 0.5)
    torch._foreach_add_(scale, settings.epsilon)
    torch._foreach_addcdiv_(params, first, scale, value=-rate / (1 - settings.beta_1**step))


def _takes_fused(tensors: Tensors) -> bool:
    """Return whether one kernel can make the whole step of Adam or of SGD with momentum, which goes
    over memory once instead of seven and three times.

    torch's for the CPU walks over tensors as they lie in memory, and so do devices of others, which it
    computes for where they have no kernel of their own.
    """
    dtype, device = tensors[0].dtype, tensors[0].device
    if dtype not in (torch.float32, torch.float64) or device.type not in ("cpu", _others_device()):
        return False
    for each in tensors:
        if each.dtype is not dtype or not each.is_contiguous() or each.device != device:
            return False
    return True


def _others_device() -> str:
    """Return the type of devices that are not torch's own."""
    return str(torch._C._get_privateuse1_backend_name())


class Optimizer(Protocol):
    """What the trainer needs of an optimizer.

    Attributes:
        slots: what it remembers, parallel to the params, as far as it can be saved.
        steps: how many steps it has made.
    """

    @property
    def slots(self) -> Slots: ...
    @property
    def steps(self) -> int: ...
    def resume(self, steps: int) -> None:
        """Continue after this many steps, with slots that the caller has set."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def step(self) -> None:
        """Make a step with the params that have a gradient."""


def local_optimizer(
    params: list[torch.nn.Parameter], settings: TrainingSettings, slots: Slots | None = None
) -> Optimizer:
    """Return the optimizer of one client's round; it begins with `slots`, if they are given.

    Raises:
        DataError: torch has no such optimizer, or it needs more than a learning rate and gradients.
    """
    if settings.is_torchs:
        return TorchOptimizer(params, settings)
    return LocalOptimizer(params, settings, slots)


class TorchOptimizer:
    """An optimizer of torch, by the name of its class in `torch.optim`.

    Attributes:
        param_groups: what torch's GradScaler looks at.
    """

    slots: Slots = ()

    def __init__(self, params: list[torch.nn.Parameter], settings: TrainingSettings) -> None:
        """Raises:
        DataError: as `local_optimizer`.
        """
        name = settings.optimizer.partition(":")[2]
        kind: Any = getattr(torch.optim, name, None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise DataError(
                f"training.optimizer {settings.optimizer!r}: torch.optim has no {name!r}"
            )
        said: dict[str, Any] = {"lr": settings.learning_rate_now()}
        if settings.weight_decay:
            said["weight_decay"] = settings.weight_decay
        try:
            self._made: Any = kind(params, **said)
        except (TypeError, ValueError) as error:
            raise DataError(f"training.optimizer {settings.optimizer!r}: {error}") from None
        self._name = settings.optimizer
        self.param_groups = self._made.param_groups
        self.steps = 0

    def resume(self, steps: int) -> None:
        """As `LocalOptimizer.resume`; rounds of it are not saved."""
        raise DataError(f"a round under training.optimizer {self._name!r} cannot be resumed")

    def zero_grad(self) -> None:
        """As `LocalOptimizer.zero_grad`."""
        self._made.zero_grad()

    def step(self) -> None:
        """As `LocalOptimizer.step`.

        Raises:
            DataError: it needs the loss again.
        """
        self.steps += 1
        try:
            self._made.step()
        except TypeError as error:
            raise DataError(
                f"training.optimizer {self._name!r} needs more than gradients: {error}"
            ) from None


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
        others = [param for param in params if type(param) is not torch.nn.Parameter]
        self._sharded = any(hasattr(param, "to_local") for param in others)
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
        gradients = [grad for param in params if (grad := param.grad) is not None]
        if len(gradients) < len(params):
            used = [place for place, param in enumerate(params) if param.grad is not None]
            params = [params[place] for place in used]
            slots = [[slot[place] for place in used] for slot in slots]
        if self._sharded:
            params = [local_of(param.detach()) for param in params]
            gradients = [local_of(gradient) for gradient in gradients]
        descend(params, gradients, slots, self._settings, step=self._steps)
