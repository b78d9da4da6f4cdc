"""Evaluates one model on many clients' data at once.

All clients evaluate the same params: so their samples are one long batch, and each client's
means are taken of its own stretch of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ...evaluation import ExampleMeans
from ...randomness import seeded
from ...task import Task
from .cohort_data import CohortData
from .site_data import Samples

__all__ = ["evaluate_stacked"]

ROWS = 4096
"""Samples evaluated at once."""


@torch.no_grad()
def evaluate_stacked(
    task: Task, module: torch.nn.Module, parts: Sequence[Samples], *, device: torch.device
) -> tuple[list[int], dict[str, NDArray[np.float64]]]:
    """Return each client's number of samples, and its means of "loss" and the metrics.

    Shapes: the means are (clients,).
    Raises:
        DataError: a metric does not give one value an example.
    """
    data = CohortData.of(parts, device=device)
    own = np.arange(data.rows.shape[1]) < data.counts[:, None]
    rows = torch.from_numpy(data.rows[own]).to(device)
    means = ExampleMeans(task)
    was_training = module.training
    module.eval()
    try:
        with seeded(0, str(device)):
            for start in range(0, len(rows), ROWS):
                chosen = rows[start : start + ROWS]
                inputs, targets = data.inputs[chosen], data.targets[chosen]
                outputs = module(inputs)
                means.add(outputs, targets, task.loss(outputs, targets))
    finally:
        module.train(was_training)
    starts = np.cumsum([0, *data.counts[:-1]])
    by_client = {
        name: np.add.reduceat(values.double().cpu().numpy(), starts) / data.counts
        for name, values in means.values().items()
    }
    return data.counts.tolist(), by_client
