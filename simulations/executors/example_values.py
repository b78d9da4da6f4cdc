"""What a cohort's examples gave as they were trained on: losses and metrics."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import DataError
from ...task import Task
from .cohort_data import BatchPlan

__all__ = ["ExampleValues", "Means", "Trained"]

Means = dict[str, NDArray[np.float64]]
Tensors = dict[str, torch.Tensor]


class Trained(Protocol):
    """What training made of a chunk of clients.

    Shapes: `means` by metric (clients,).
    """

    @property
    def means(self) -> Means: ...

    def changes(self, good: list[int] | None, weights: torch.Tensor) -> Tensors:
        """Return the weighted sum of the changes of params and buffers, by name, of the clients
        `good` (None: of all); `weights` are theirs."""

    def of_client(self, row: int) -> Tensors:
        """Return one client's params and buffers."""


class ExampleValues:
    """Keeps each step's losses and metrics, as they were before the step."""

    def __init__(self, task: Task, plan: BatchPlan, device: torch.device) -> None:
        self._task = task
        self._shape = plan.rows.shape
        own = np.arange(plan.rows.shape[2]) < plan.sizes[:, :, None]
        self._own = torch.from_numpy(own).to(device)
        self._counts = plan.sizes.sum(axis=1)
        self._values: dict[str, torch.Tensor] = {}

    def weights(self) -> torch.Tensor:
        """Return what each example's loss counts in its step: the inverse of its batch's size,
        and 0 for padding: (clients, steps, batch)."""
        sizes = self._own.sum(2, keepdim=True).clamp(min=1)
        return self._own.float() / sizes

    def take(
        self,
        step: int,
        low: int,
        losses: torch.Tensor,
        outputs: torch.Tensor,
        targets: torch.Tensor,
    ) -> None:
        """Take a step of the clients from `low` on.

        Shapes: losses (clients, batch), outputs (clients * batch, ...), targets likewise.
        Raises:
            DataError: a metric does not give one value an example.
        """
        self._keep("loss", step, low, losses)
        for name, metric in self._task.metrics.items():
            values = metric(outputs, targets)
            if not isinstance(values, torch.Tensor) or values.shape != (len(targets),):
                got = tuple(values.shape) if isinstance(values, torch.Tensor) else values
                raise DataError(
                    f"{name} must give one value per example, shape ({len(targets)},), got {got}"
                )
            self._keep(name, step, low, values.view(losses.shape))

    def means(self) -> Means:
        """Return each client's means over all its examples and epochs, summed in float64."""
        return {
            name: values.where(self._own, 0.0).sum((1, 2), dtype=torch.float64).cpu().numpy()
            / self._counts
            for name, values in self._values.items()
        }

    def _keep(self, name: str, step: int, low: int, values: torch.Tensor) -> None:
        if name not in self._values:
            self._values[name] = torch.zeros(self._shape, device=values.device)
        self._values[name][low : low + len(values), step, : values.shape[1]] = values
