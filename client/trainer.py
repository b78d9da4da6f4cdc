"""Trains a module on one site's data: some epochs from the params that the server sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import torch

from ..batches import Batch, batches_of
from ..errors import DataError
from ..evaluation import ExampleMeans
from ..randomness import seeded
from ..seeds import derive, spread
from .objectives import proximal
from .optimizers import LocalOptimizer, Slots
from .training_settings import TrainingSettings

if TYPE_CHECKING:
    from ..task import Data, Task

__all__ = ["Session", "choose_device", "train"]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Session(Protocol):
    """What an algorithm does in a client's training.

    Attributes:
        slots: what the optimizer begins with; None: with new ones.
    """

    slots: Slots | None

    def correct(self) -> None:
        """Correct the gradients of the step that is about to be made."""


def choose_device(wanted: str) -> str:
    """Return the device to use: "auto" is the first GPU if there is one, else the CPU.

    Raises:
        DataError: torch does not know the device, or it is not there.
    """
    if wanted == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise DataError(
            f'device {wanted!r} is unknown; say "auto", "cpu", or a GPU as "cuda:0"'
        ) from None
    there = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= there:
        raise DataError(
            f'device {wanted!r} is not there: torch sees {there} GPUs; set device = "auto"'
        )
    return wanted


def train(
    task: Task,
    module: torch.nn.Module,
    data: Data,
    settings: TrainingSettings,
    *,
    client: int,
    device: str,
    session: Session | None = None,
) -> tuple[int, dict[str, float]]:
    """Train `module` in place; returns the number of samples seen in an epoch, and the means of
    "loss" and the task's metrics over all examples, as they were before each step.

    `session` is the algorithm's part in the steps, if it asks for more than training.
    Guarantees: the same params, data, settings and client give the same bits in any process
        that has as many threads and the same kind of device; no global generator is left
        changed.
    Raises:
        DataError: the data are empty or not what the task needs, or the loss is not finite.
    """
    with seeded(derive(settings.seed, settings.server_round, client, "training"), device):
        return _Local(task, module, settings, client, device, session).run(data)


def batch_order_seed(settings: TrainingSettings, client: int) -> int:
    """Return the seed of a client's batches in a round."""
    stream = derive(settings.seed, settings.server_round, "batches")
    return int(spread(stream, np.array([client], np.uint64))[0])


class _Local:
    """One client's training in one round."""

    def __init__(
        self,
        task: Task,
        module: torch.nn.Module,
        settings: TrainingSettings,
        client: int,
        device: str,
        session: Session | None,
    ) -> None:
        self._task = task
        self._module = module
        self._settings = settings
        self._client = client
        self._device = torch.device(device)
        self._params = [p for p in module.parameters() if p.requires_grad]
        self._starts = [p.detach().clone() for p in self._params] if settings.proximal_mu else []
        self._session = session
        slots = session.slots if session is not None else None
        self._optimizer = LocalOptimizer(self._params, settings, slots)
        scaled = settings.precision == "fp16"
        self._scaler = torch.amp.GradScaler(self._device.type) if scaled else None
        self._means = ExampleMeans(task)

    def run(self, data: Data) -> tuple[int, dict[str, float]]:
        """Train for the epochs that the settings ask for."""
        order = batch_order_seed(self._settings, self._client)
        self._module.train()
        samples, means = 0, {}
        for epoch in range(self._settings.epochs):
            batches = batches_of(data, self._settings.batch_size, seed=order, epoch=epoch)
            for group in _groups(batches, self._settings.accumulation_steps):
                self._step(group)
            samples = samples or self._means.examples
            means = self._means.means()
            if not math.isfinite(means["loss"]):
                raise DataError(
                    f"the training loss is {means['loss']} in round "
                    f"{self._settings.server_round}, epoch {epoch + 1}; lower "
                    "training.learning_rate, set training.gradient_clip_norm, or look for "
                    "invalid values in the data"
                )
        return samples, means

    def _step(self, group: list[Batch]) -> None:
        """Make one optimizer step from the mean gradient over all examples of these batches."""
        examples = sum(len(targets) for _, targets in group)
        for inputs, targets in group:
            loss = self._losses(inputs, targets).sum() / examples
            torch.autograd.backward(self._scaler.scale(loss) if self._scaler else loss)
        optimizer = cast(torch.optim.Optimizer, self._optimizer)  # as far as a scaler looks at it
        if self._scaler:
            self._scaler.unscale_(optimizer)
        self._correct()
        if self._scaler:
            self._scaler.step(optimizer)
            self._scaler.update()
        else:
            self._optimizer.step()
        self._optimizer.zero_grad()

    def _losses(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        inputs, targets = inputs.to(self._device), targets.to(self._device)
        with self._autocast():
            outputs = self._module(inputs)
        if outputs.dtype in _AUTOCAST.values() and self._settings.precision != "fp32":
            outputs = outputs.float()
        losses = self._task.loss(outputs, targets)
        self._means.add(outputs, targets, losses)
        return losses

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = _AUTOCAST.get(self._settings.precision)
        return nullcontext() if dtype is None else torch.autocast(self._device.type, dtype)

    def _correct(self) -> None:
        """Apply the algorithm's local objective, then clip."""
        settings = self._settings
        for param, start in zip(self._params, self._starts, strict=False):
            if param.grad is not None:
                param.grad = proximal(param.grad, param.detach(), start, mu=settings.proximal_mu)
        if self._session is not None:
            self._session.correct()
        if settings.gradient_clip_norm:
            torch.nn.utils.clip_grad_norm_(self._params, settings.gradient_clip_norm)


def _groups(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Yield lists of `size` batches, the last one perhaps shorter."""
    left = iter(batches)
    while group := list(islice(left, size)):
        yield group
