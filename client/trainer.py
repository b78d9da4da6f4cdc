"""Trains a module on one site's data: some epochs from the params that the server sent."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import torch

from ..batches import Batch, batches_of
from ..errors import DataError
from ..evaluation import values_per_example
from ..seeds import derive
from .objectives import proximal
from .training_settings import TrainingSettings

if TYPE_CHECKING:
    from ..task import Data, Task

__all__ = ["choose_device", "train"]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(wanted: str) -> str:
    """Return the device to use: "auto" is the first GPU if there is one, else the CPU.

    Raises:
        DataError: the device that is asked for is not there.
    """
    if wanted == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted)
    if device.type == "cuda":
        there = torch.cuda.device_count()
        if (device.index or 0) >= there:
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
) -> tuple[int, dict[str, float]]:
    """Train `module` in place; returns the number of samples seen in an epoch, and means over
    all steps of "loss" and the task's metrics.

    Guarantees: the same params, data, settings and client give the same bits, in any process
        with as many threads; torch's global generator is left as it was.
    Raises:
        DataError: the data are empty, or the loss is not finite.
    """
    devices = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices):
        stream = (settings.server_round, client)
        torch.manual_seed(derive(settings.seed, *stream, "dropout"))
        order = torch.Generator().manual_seed(derive(settings.seed, *stream, "batches"))
        return _Local(task, module, settings, device).run(data, order)


class _Local:
    """One client's training in one round."""

    def __init__(
        self, task: Task, module: torch.nn.Module, settings: TrainingSettings, device: str
    ) -> None:
        self._task = task
        self._module = module
        self._settings = settings
        self._device = device
        self._params = [p for p in module.parameters() if p.requires_grad]
        self._starts = [p.detach().clone() for p in self._params] if settings.proximal_mu else []
        self._optimizer = _optimizer(self._params, settings)
        scaled = settings.precision == "fp16"
        self._scaler = torch.amp.GradScaler(torch.device(device).type, enabled=scaled)
        zero = torch.zeros((), dtype=torch.float64, device=device)
        self._totals = {name: zero.clone() for name in ("loss", *task.metrics)}
        self._examples = 0

    def run(self, data: Data, order: torch.Generator) -> tuple[int, dict[str, float]]:
        self._module.train()
        for epoch in range(self._settings.epochs):
            batches = batches_of(data, self._settings.batch_size, generator=order)
            while group := list(islice(batches, self._settings.accumulation_steps)):
                self._step(group)
            if not epoch:
                samples = self._examples
        means = {name: float(total) / self._examples for name, total in self._totals.items()}
        if not _is_finite(means["loss"]):
            raise DataError(
                f"the training loss is {means['loss']}; lower training.learning_rate, set "
                "training.gradient_clip_norm, or look for invalid values in the data"
            )
        return samples, means

    def _step(self, group: list[Batch]) -> None:
        """Make one optimizer step from the mean gradient over all examples of these batches."""
        examples = sum(len(targets) for _, targets in group)
        for inputs, targets in group:
            losses = self._forward(inputs.to(self._device), targets.to(self._device))
            self._scaler.scale(losses.sum() / examples).backward()
        self._scaler.unscale_(self._optimizer)
        self._correct()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)

    def _forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        precision = self._settings.precision
        kind = torch.device(self._device).type
        with torch.autocast(kind, _AUTOCAST.get(precision), enabled=precision in _AUTOCAST):
            outputs = self._module(inputs)
        if precision in _AUTOCAST and outputs.is_floating_point():
            outputs = outputs.float()
        losses = values_per_example("loss", self._task.loss(outputs, targets), len(targets))
        self._count(outputs.detach(), targets, losses.detach())
        return losses

    def _count(self, outputs: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor) -> None:
        self._examples += len(targets)
        for name, function in self._task.metrics.items():
            values = values_per_example(name, function(outputs, targets), len(targets))
            self._totals[name] += values.double().sum()
        self._totals["loss"] += losses.double().sum()

    def _correct(self) -> None:
        """Apply the algorithm's local objective, then clip."""
        settings = self._settings
        for param, start in zip(self._params, self._starts, strict=False):
            if param.grad is not None:
                param.grad = proximal(param.grad, param.detach(), start, mu=settings.proximal_mu)
        if settings.gradient_clip_norm:
            torch.nn.utils.clip_grad_norm_(self._params, settings.gradient_clip_norm)


def _optimizer(
    params: list[torch.nn.Parameter], settings: TrainingSettings
) -> torch.optim.Optimizer:
    rate = settings.learning_rate_now()
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            params, lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(
        params,
        lr=rate,
        betas=(settings.beta_1, settings.beta_2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )


def _is_finite(value: float) -> bool:
    return value - value == 0.0
