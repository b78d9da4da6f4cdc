"""Central evaluation: the params on the server's own data, after a round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, MetricRecord

from ..flower.messages import arrays_to_params

if TYPE_CHECKING:
    import torch

    from ..task import Data, Task

__all__ = ["CentralEvaluation"]


class CentralEvaluation:
    """Evaluates params with the task's `server_data`, which is loaded once."""

    def __init__(self, task: Task, *, batch_size: int, seed: int) -> None:
        self._task = task
        self._batch_size = batch_size
        self._seed = seed
        self._loaded: tuple[torch.nn.Module, Data] | None = None

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Return the metrics of `arrays`; None if the task has no such data."""
        from ..training.evaluation import evaluate
        from ..training.module_params import build_module, load_some

        if self._task.server_data is None:
            return None
        if self._loaded is None:
            self._loaded = build_module(self._task, self._seed), self._task.server_data()
        module, data = self._loaded
        load_some(module, arrays_to_params(arrays))
        _, means = evaluate(self._task, module, data, batch_size=self._batch_size)
        return MetricRecord(dict(means))
