"""What a cohort's examples gave as they were trained on: losses and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import DataError
from ...task import Task
from .cohort_data import BatchPlan

__all__ = ["ExampleValues", "Means", "Trained", "Weights"]

Means = dict[str, NDArray[np.float64]]
Tensors = dict[str, torch.Tensor]
Weights = Callable[[str], torch.Tensor]
"""What each client counts in the sum of changes, by the name of a param: (clients,)."""


class Trained(Protocol):
    """What training made of a chunk of clients.

    Shapes: `means` by metric (clients,).
    """

    @property
    def means(self) -> Means: ...

    def changes(self, good: list[int] | None, weights: Weights) -> Tensors:
        """Return the weighted sum of the changes of params and buffers, by name, of the clients
        `good` (None: of all); `weights` are theirs."""

    def squares(self) -> Tensors:
        """Return the squared L2 norms of each client's changes, by name of a floating-point param
        or buffer: float64 (clients,)."""

    def of_client(self, row: int) -> Tensors:
        """Return one client's params and buffers."""


class ExampleValues:
    """Keeps what each step gave before it was made; metrics are computed of all steps at once."""

    def __init__(self, task: Task, plan: BatchPlan, device: torch.device) -> None:
        self._task = task
        self._device = device
        own = np.arange(plan.rows.shape[2]) < plan.sizes[:, :, None]
        self._own = torch.from_numpy(own).to(device)
        self._counts = plan.sizes.sum(axis=1)
        self._steps: list[tuple[int, int, torch.Tensor, torch.Tensor, torch.Tensor]] = []

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
        """
        self._steps.append((step, low, losses, outputs if self._task.metrics else losses, targets))

    def means(self) -> Means:
        """Return each client's means over all its examples and epochs, summed in float64.

        Raises:
            DataError: a metric does not give one value an example.
        """
        made = {"loss": torch.cat([losses.flatten() for _, _, losses, _, _ in self._steps])}
        if self._task.metrics:
            outputs = torch.cat([outputs for _, _, _, outputs, _ in self._steps])
            targets = torch.cat([targets for _, _, _, _, targets in self._steps])
            for name, metric in self._task.metrics.items():
                made[name] = _one_an_example(name, metric(outputs, targets), len(targets))
        return {name: self._mean(values) for name, values in made.items()}

    def _mean(self, values: torch.Tensor) -> NDArray[np.float64]:
        placed = torch.zeros(self._own.shape, device=self._device)
        parts = torch.split(values, [each[2].numel() for each in self._steps])
        for (step, low, losses, _, _), part in zip(self._steps, parts, strict=True):
            rows, batch = losses.shape
            placed[low : low + rows, step, :batch] = part.view(rows, batch)
        sums = placed.where(self._own, 0.0).sum((1, 2), dtype=torch.float64)
        return np.asarray(sums.cpu().numpy() / self._counts)


def _one_an_example(name: str, values: object, count: int) -> torch.Tensor:
    if not isinstance(values, torch.Tensor) or values.shape != (count,):
        got = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise DataError(f"{name} must give one value per example, shape ({count},), got {got}")
    return values
