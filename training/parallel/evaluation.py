"""Evaluation by several ranks, each of which has the whole module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ...task import Task
from ..additive_metrics import value_names
from ..batches import Batch, batches_of, samples_in
from ..evaluation import EVALUATION_BATCH_MIN, measured
from .divided import send_params
from .parallelism import Parallelism

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["evaluate_together"]


def evaluate_together(
    task: Task,
    module: torch.nn.Module,
    data: Data,
    *,
    batch_size: int,
    device: str,
    parallelism: Parallelism,
) -> tuple[int, dict[str, float]]:
    """Return, on every rank, the number of samples and the means over all of them.

    All ranks then have rank 0's params.

    Raises:
        DataError: as `evaluation.evaluate`.
    """
    send_params(module)
    size = max(batch_size, EVALUATION_BATCH_MIN)
    means = measured(task, module, _shares(data, size, parallelism), device=device)
    examples, *sums = parallelism.totals([means.examples, *means.sums()])
    names = value_names(task)
    return int(examples), {n: total / examples for n, total in zip(names, sums, strict=True)}


def _shares(data: Data, size: int, parallelism: Parallelism) -> Iterator[tuple[Batch, bool]]:
    """Yield this rank's part of each batch, and whether it counts."""
    count = samples_in(data)
    batches = batches_of(data, size, share=parallelism.share)
    for start, batch in zip(range(0, count, size), batches, strict=True):
        yield batch, parallelism.rows(min(size, count - start)) > 0
