"""How many threads a step of a stack is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...client.training_settings import TrainingSettings
from ...process_limits import threads_at_most
from .cohort_data import CohortData
from .stacked_module import StackedModule

__all__ = ["step_threads"]

THREAD_FLOPS = 40e6
"""Below so many operations a step each, threads cost more than they do."""


@contextmanager
def step_threads(
    stacked: StackedModule, data: CohortData, settings: TrainingSettings
) -> Iterator[None]:
    """Train with as many threads as pay, of those that there may be."""
    before = torch.get_num_threads()
    worth = int(_flops(stacked, data, settings) / THREAD_FLOPS)
    torch.set_num_threads(max(1, min(threads_at_most(before), worth)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _flops(stacked: StackedModule, data: CohortData, settings: TrainingSettings) -> int:
    """Return about how many operations a step takes, if each param is used once an example."""
    params = sum(tensor.numel() for tensor in stacked.trained.values())
    batch = min(settings.batch_size, int(data.rows.shape[1]))
    return 6 * params * batch * len(data.counts)
