"""Evaluates a module on data: the mean loss and metrics over all samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from ..errors import DataError
from ..randomness.seeded import seeded
from ..task import AdditiveMetric
from .additive_metrics import value_names
from .batches import Batch, batches_of

if TYPE_CHECKING:
    from ..task import Data, Task

__all__ = ["EVALUATION_BATCH_MIN", "ExampleMeans", "evaluate", "measured", "require_values"]

EVALUATION_BATCH_MIN = 256


def evaluate(
    task: Task, module: torch.nn.Module, data: Data, *, batch_size: int, device: str = "cpu"
) -> tuple[int, dict[str, float]]:
    """Return the number of samples, and "loss" and the task's metrics averaged over them.

    Guarantees: no gradients, the module in evaluation mode and then back in its own; the same
        numbers wherever it runs on the same kind of device.
    Raises:
        DataError: the data are empty, or a metric does not give one value an example.
    """
    batches = batches_of(data, max(batch_size, EVALUATION_BATCH_MIN))
    means = measured(task, module, ((batch, True) for batch in batches), device=device)
    return means.examples, means.means()


def measured(
    task: Task, module: torch.nn.Module, batches: Iterable[tuple[Batch, bool]], *, device: str
) -> ExampleMeans:
    """Return the values of all examples of batches, as `evaluate` computes them.

    Each batch comes with whether it counts: some are there only so that the module is passed.
    """
    was_training = module.training
    module.eval()
    means = ExampleMeans(task)
    try:
        with seeded(0, device), torch.no_grad():
            for (inputs, targets), counts in batches:
                inputs, targets = inputs.to(device), targets.to(device)
                outputs = module(inputs)
                if counts:
                    means.add(outputs, targets, task.loss(outputs, targets))
    finally:
        module.train(was_training)
    return means


class ExampleMeans:
    """Averages the loss and a task's metrics over examples, in float64.

    Attributes:
        names: the values', as `value_names` has them.
    """

    def __init__(self, task: Task) -> None:
        self._metrics, self.names = task.metrics, value_names(task)
        self._losses: list[torch.Tensor] = []
        self._values = {"loss": self._losses, **{name: [] for name in task.metrics}}
        self.examples = 0

    def add(self, outputs: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor) -> None:
        """Take one batch's examples.

        Raises:
            DataError: the loss or a metric does not give one value an example.
        """
        count = targets.shape[0]
        self._losses.append(require_values("loss", losses, count).detach())
        if self._metrics:
            outputs = outputs.detach()
            for name, metric in self._metrics.items():
                if isinstance(metric, AdditiveMetric):
                    self._take(name, metric.statistics(outputs, targets), count, metric.size)
                else:
                    self._take(name, metric(outputs, targets), count)
        self.examples += count

    def means(self) -> dict[str, float]:
        """Return the means of all examples so far; NaN for a value without examples."""
        count = self.examples
        sums = [each / count if count else math.nan for each in self.sums()]
        return dict(zip(self.names, sums, strict=True))

    def sums(self) -> list[float]:
        """Return the sums of all examples so far, as `value_names` names them."""
        return [each for name, values in self._values.items() for each in self._sums(name, values)]

    def mark(self) -> tuple[int, int]:
        """Return the present number of batches, for `back_to`."""
        return len(self._losses), self.examples

    def back_to(self, mark: tuple[int, int]) -> None:
        """Forget the examples that were added since a mark."""
        batches, self.examples = mark
        for values in self._values.values():
            del values[batches:]

    def extend(self, other: Mapping[str, torch.Tensor]) -> None:
        """Take the values of other examples, as `values` gave them."""
        for name, values in other.items():
            self._values[name].append(values)
        self.examples += len(other.get("loss", ()))

    def values(self) -> dict[str, torch.Tensor]:
        """Return each example's values so far, by name: (examples,)."""
        return {name: torch.cat(values) for name, values in self._values.items() if values}

    def _take(self, name: str, values: torch.Tensor, count: int, size: int = 0) -> None:
        self._values[name].append(require_values(name, values, count, size).detach())

    def _sums(self, name: str, values: list[torch.Tensor]) -> list[float]:
        metric = self._metrics.get(name)
        size = metric.size if isinstance(metric, AdditiveMetric) else 0
        if not values:
            return [0.0] * max(1, size)
        sums = torch.cat(values).cpu().sum(0, dtype=torch.float64)
        return [float(sums)] if not size else list(sums.tolist())


def require_values(name: str, values: object, count: int, size: int = 0) -> torch.Tensor:
    """Return what a loss or a metric gives if it is a value an example, (count,), or `size` of them,
    (count, size).

    Raises:
        DataError: it is not.
    """
    shape = (count, size) if size else (count,)
    if not isinstance(values, torch.Tensor) or values.shape != shape:
        got = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        what = f"{size} values per example" if size else "one value per example"
        remedy = '; for torch\'s losses say reduction="none"' if name == "loss" else ""
        raise DataError(f"{name} must give {what}, shape {shape}, got {got}{remedy}")
    return values
