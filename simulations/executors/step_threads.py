"""How many threads a step of a stack is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...client.training_settings import TrainingSettings
from .cohort_data import CohortData
from .stacked_module import StackedModule

__all__ = ["step_threads"]

SECOND_THREAD_FLOPS = 80e6
"""Below so many operations a step, waking another thread costs more than it does."""


@contextmanager
def step_threads(
    stacked: StackedModule, data: CohortData, settings: TrainingSettings
) -> Iterator[None]:
    """Train with one thread where another would not pay, else with as many as there are."""
    threads = torch.get_num_threads()
    if threads == 1 or _flops(stacked, data, settings) >= SECOND_THREAD_FLOPS:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _flops(stacked: StackedModule, data: CohortData, settings: TrainingSettings) -> int:
    """Return about how many operations a step takes, if each param is used once an example."""
    params = sum(tensor.numel() for tensor in stacked.trained.values())
    batch = min(settings.batch_size, int(data.rows.shape[1]))
    return 6 * params * batch * len(data.counts)
