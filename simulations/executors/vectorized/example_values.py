"""What a cohort's examples gave as they were trained on: losses and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ....strategies.algorithms.metrics import statistics_of
from ....task import AdditiveMetric, Task
from ....training.evaluation import require_values
from .cohort_data import BatchLayout, Step

__all__ = ["ExampleValues", "Means", "Trained", "Weights"]

Means = dict[str, NDArray[np.float64]]
Tensors = dict[str, torch.Tensor]
Weights = Callable[[str], torch.Tensor]
"""What each client counts in the sum of deltas, by the name of a param: (clients,)."""


class Trained(Protocol):
    """What training made of a chunk of clients.

    Shapes: `means` by metric (clients,).
    """

    @property
    def means(self) -> Means: ...

    def deltas(self, good: list[int] | None, weights: Weights) -> Tensors:
        """Return the weighted sum of the deltas of params and buffers, by name, of the clients
        `good` (None: of all); `weights` are theirs."""

    def each(self, low: int, high: int) -> Tensors:
        """Return the deltas of the clients `low` to `high`, each by its own steps alone, by name
        of a floating-point param or buffer: (clients, ...)."""

    def of_client(self, row: int) -> Tensors:
        """Return one client's params and buffers."""


class ExampleValues:
    """Keeps what each step gave before it was made; metrics are computed of all steps at once, but
    those in `mixing` of each client's each batch alone."""

    def __init__(
        self, task: Task, layout: BatchLayout, mixing: frozenset[str] = frozenset()
    ) -> None:
        self._task = task
        self._layout = layout
        self._mixing = mixing
        self._steps: list[Step] = []
        self._losses: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor] = []
        self._targets: list[torch.Tensor] = []

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
        self._steps.append((step, low, *losses.shape))
        self._losses.append(losses.flatten())
        if self._task.metrics:
            self._outputs.append(outputs)
            self._targets.append(targets)

    def means(self) -> Means:
        """Return each client's means over all its examples and epochs, summed in float64.

        Raises:
            DataError: a metric does not give one value an example.
        """
        made = {"loss": torch.cat(self._losses)}
        if self._task.metrics:
            outputs, targets = torch.cat(self._outputs), torch.cat(self._targets)
            for name, metric in self._task.metrics.items():
                if name in self._mixing:
                    values = self._by_batch(name)
                else:
                    values = _values_of(name, metric, outputs, targets)
                names = statistics_of(name, values.shape[1]) if values.ndim > 1 else [name]
                made |= zip(names, values.reshape(len(targets), -1).T, strict=True)
        values = torch.stack([each.float() for each in made.values()])
        sums = self._layout.sums(self._steps, values).cpu().numpy()
        means = sums / self._layout.sizes.sum(axis=1)
        return dict(zip(made, means, strict=True))

    def _by_batch(self, name: str) -> torch.Tensor:
        """Return a metric's values, of one batch of one client after another; 0 for padding."""
        metric, made = self._task.metrics[name], []
        for (step, low, rows, batch), outputs, targets in zip(
            self._steps, self._outputs, self._targets, strict=True
        ):
            size = (metric.size,) if isinstance(metric, AdditiveMetric) else ()
            values = outputs.new_zeros(rows, batch, *size, dtype=torch.float32)
            for row, count in enumerate(self._layout.sizes[low : low + rows, step].tolist()):
                own = slice(row * batch, row * batch + count)
                values[row, :count] = _values_of(name, metric, outputs[own], targets[own])
            made.append(values.flatten(0, 1))
        return torch.cat(made)


def _values_of(
    name: str, metric: Any, outputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Return what a metric gives for each example, (examples,), or (examples, size) of an additive one."""
    if isinstance(metric, AdditiveMetric):
        found = metric.statistics(outputs, targets)
        return require_values(name, found, len(targets), metric.size)
    return require_values(name, metric(outputs, targets), len(targets))
