"""Evaluates a module on data: the mean loss and metrics over all samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .batches import batches_of
from .errors import DataError

if TYPE_CHECKING:
    from .task import Data, Task

__all__ = ["evaluate", "values_per_example"]

EVALUATION_BATCH_MIN = 256


@torch.no_grad()
def evaluate(
    task: Task, module: torch.nn.Module, data: Data, *, batch_size: int, device: str = "cpu"
) -> tuple[int, dict[str, float]]:
    """Return the number of samples, and "loss" and the task's metrics averaged over them.

    Sums are float64, in the order of the data, so the result does not depend on where it runs.

    Raises:
        DataError: the data are empty, or a metric does not give one value a sample.
    """
    was_training = module.training
    module.eval()
    totals: dict[str, torch.Tensor] = {}
    count = 0
    try:
        for inputs, targets in batches_of(data, max(batch_size, EVALUATION_BATCH_MIN)):
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = module(inputs)
            count += len(targets)
            functions = {"loss": task.loss, **task.metrics}
            for name, function in functions.items():
                values = values_per_example(name, function(outputs, targets), len(targets))
                total = values.detach().double().sum().cpu()
                totals[name] = totals[name] + total if name in totals else total
    finally:
        module.train(was_training)
    return count, {name: float(total) / count for name, total in totals.items()}


def values_per_example(name: str, values: torch.Tensor, count: int) -> torch.Tensor:
    """Return `values` if there is one for each example.

    Raises:
        DataError: the task's function averages by itself, or gives another shape.
    """
    if values.shape != (count,):
        raise DataError(
            f"{name} must give one value per example, shape ({count},), got "
            f"{tuple(values.shape)}; for torch's losses say reduction=\"none\""
        )
    return values
