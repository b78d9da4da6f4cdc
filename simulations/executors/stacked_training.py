"""Trains many clients at once: the steps of `client/trainer.py` with a leading client axis.

Clients are sorted by their number of samples, so that those which still train at a step are a
prefix of the stack: a step works on views, and nobody waits or is masked. A last, smaller batch is
padded with weights of zero; where a model looks across the examples of a batch (batch norm),
clients with batches of the same size are taken together instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...client.objectives import proximal
from ...client.optimizers import descend, new_slots
from ...client.training_settings import TrainingSettings
from ...errors import DataError
from ...seeds import derive, spread
from ...task import Task
from .client_dropout import ClientDropout
from .cohort_data import BatchPlan, CohortData, plan_batches
from .stacked_module import StackedModule, Step, Tensors

__all__ = ["Trained", "train_stacked"]


@dataclass(frozen=True, slots=True)
class Trained:
    """What training made of a stack.

    Shapes: params and buffers (clients, ...); `means` by metric (clients,) float64.
    """

    params: Tensors
    buffers: Tensors
    means: dict[str, NDArray[np.float64]]


def train_stacked(
    task: Task,
    stacked: StackedModule,
    data: CohortData,
    settings: TrainingSettings,
    *,
    clients: Sequence[int],
) -> Trained:
    """Train the clients (node ids, in the order of `data`) from the module's params.

    Guarantees: each client's params are those of the sequential trainer within float rounding.
    Raises:
        DataError: the loss or a metric does not give one value an example.
    """
    return _Training(task, stacked, data, settings, clients).run()


class _Training:
    def __init__(
        self,
        task: Task,
        stacked: StackedModule,
        data: CohortData,
        settings: TrainingSettings,
        clients: Sequence[int],
    ) -> None:
        self._task, self._stacked, self._data, self._settings = task, stacked, data, settings
        ids = np.array(clients, np.uint64)
        stream = derive(settings.seed, settings.server_round, "batches")
        self._plan = plan_batches(
            data,
            spread(stream, ids),
            batch_size=settings.batch_size * settings.accumulation_steps,
            epochs=settings.epochs,
        )
        self._device = data.inputs.device
        self._params, self._buffers = stacked.stack(len(clients))
        self._starts = list(stacked.trained.values())
        self._slots = new_slots(list(self._params.values()), settings)
        self._dropout: ClientDropout | None = None
        if stacked.drops_out:
            parts = (settings.server_round, "training")
            seeds = [derive(settings.seed, parts[0], client, parts[1]) for client in clients]
            self._dropout = ClientDropout(seeds, self._device)
        self._rows = torch.from_numpy(self._plan.rows).to(self._device)
        self._weights = _weights(self._plan).to(self._device)
        self._values: dict[str, torch.Tensor] = {}

    def run(self) -> Trained:
        plan = self._plan
        for step in range(plan.rows.shape[1]):
            if self._stacked.mixes_examples:
                for low, high, size in plan.runs(step):
                    self._step(step, low, high, size)
            else:
                self._step(step, 0, plan.active(step), plan.rows.shape[2])
        return Trained(self._params, self._buffers, self._means())

    def _step(self, number: int, low: int, high: int, size: int) -> None:
        """Make a step of the clients `low` to `high` with batches of `size`."""
        rows = self._rows[low:high, number, :size].reshape(-1)
        inputs, targets = self._data.inputs[rows], self._data.targets[rows]
        inputs = inputs.view(high - low, size, *inputs.shape[1:])
        targets = targets.view(high - low, size, *targets.shape[1:])
        params = {name: tensor[low:high] for name, tensor in self._params.items()}
        buffers = {name: tensor[low:high] for name, tensor in self._buffers.items()}
        weights = self._weights[low:high, number, :size]
        own = self._plan.sizes[low:high, number].tolist()
        with self._dropout.of(low, own) if self._dropout else nullcontext():
            made = self._stacked.step(params, buffers, inputs, targets, weights)
        self._note(number, low, high, targets, made)
        gradients = self._corrected(list(params.values()), list(made.gradients.values()))
        slots = [[tensor[low:high] for tensor in slot] for slot in self._slots]
        descend(list(params.values()), gradients, slots, self._settings, step=number + 1)

    def _corrected(
        self, params: list[torch.Tensor], gradients: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Apply the algorithm's local objective, then clip each client's gradient."""
        settings = self._settings
        if settings.proximal_mu:
            gradients = [
                proximal(gradient, param, start, mu=settings.proximal_mu)
                for gradient, param, start in zip(gradients, params, self._starts, strict=True)
            ]
        if settings.gradient_clip_norm:
            squares = [each.reshape(len(each), -1).square().sum(1) for each in gradients]
            norms = torch.stack(squares).sum(0).sqrt()
            # as torch.nn.utils.clip_grad_norm_ does
            factors = (settings.gradient_clip_norm / (norms + 1e-6)).clamp(max=1.0)
            gradients = [
                gradient * factors.view(-1, *(1 for _ in gradient.shape[1:]))
                for gradient in gradients
            ]
        return gradients

    def _note(self, number: int, low: int, high: int, targets: torch.Tensor, made: Step) -> None:
        """Keep the examples' losses and metrics, as they were before the step."""
        batch = made.losses.shape[1]
        self._keep("loss", number, low, high, made.losses)
        if not self._task.metrics:
            return
        outputs, flat = made.outputs.flatten(0, 1), targets.flatten(0, 1)
        for name, metric in self._task.metrics.items():
            values = metric(outputs, flat)
            if not isinstance(values, torch.Tensor) or values.shape != (len(flat),):
                got = tuple(values.shape) if isinstance(values, torch.Tensor) else values
                raise DataError(
                    f"{name} must give one value per example, shape ({len(flat)},), got {got}"
                )
            self._keep(name, number, low, high, values.view(-1, batch))

    def _keep(self, name: str, number: int, low: int, high: int, values: torch.Tensor) -> None:
        if name not in self._values:
            self._values[name] = torch.zeros(
                self._plan.rows.shape, dtype=torch.float32, device=self._device
            )
        self._values[name][low:high, number, : values.shape[1]] = values

    def _means(self) -> dict[str, NDArray[np.float64]]:
        """Return each client's means over all its examples and epochs."""
        own = self._weights > 0
        counts = own.sum((1, 2)).double()
        return {
            name: (values.double().where(own, 0.0).sum((1, 2)) / counts).cpu().numpy()
            for name, values in self._values.items()
        }


def _weights(plan: BatchPlan) -> torch.Tensor:
    """Return what each example's loss counts: the inverse of its batch's size, 0 for padding."""
    places = np.arange(plan.rows.shape[2])
    own = places < plan.sizes[:, :, None]
    return torch.from_numpy(np.where(own, 1.0 / np.maximum(plan.sizes, 1)[:, :, None], 0.0)).float()
