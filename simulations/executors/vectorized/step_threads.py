"""How many threads a step of a stack is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ....machine.process_limits import threads_at_most
from ....training.settings import TrainingSettings
from .cohort_data import CohortData

__all__ = ["step_threads"]

THREAD_FLOPS = 4e6
"""Below so many operations a step each, threads cost more than they do."""


@contextmanager
def step_threads(
    example_flops: int, data: CohortData, settings: TrainingSettings
) -> Iterator[None]:
    """Train with as many threads as pay, of those that there may be.

    `example_flops` are a step's floating point operations for each example.
    """
    before = torch.get_num_threads()
    batch = min(settings.batch_size, int(data.rows.shape[1]))
    worth = int(example_flops * batch * len(data.counts) / THREAD_FLOPS)
    torch.set_num_threads(max(1, min(threads_at_most(before), worth)))
    try:
        yield
    finally:
        torch.set_num_threads(before)
