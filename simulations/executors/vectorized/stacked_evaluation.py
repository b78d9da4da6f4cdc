"""Evaluates one model on many clients' data at once.

All clients evaluate the same params. Where the module, the loss and the metrics are proven to act on
each example alone, all samples are one long batch, and each client's means are taken of its own
stretch of it; else, or where the module or the loss changes what it holds, each client's are evaluated
as it does alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ....strategies.algorithms.metrics import statistics_of
from ....task import Task
from ....training.evaluation import ExampleMeans, evaluate
from ....training.module_state import PythonState
from ..site_data import Samples
from .cohort_data import CohortData
from .rowwise import function_of_examples, rowwise_function, rowwise_graph

__all__ = ["StackedEvaluation"]

ROWS = 4096
"""Samples evaluated at once."""


Measured = tuple[list[int], dict[str, NDArray[np.float64]]]


class StackedEvaluation:
    """Evaluates a task's modules; what is proven of one is remembered."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task, self._device = task, device
        self._graphs: dict[torch.nn.Module, torch.fx.GraphModule | None] = {}

    def evaluate(
        self, module: torch.nn.Module, parts: Sequence[Samples], *, batch_size: int
    ) -> Measured:
        """Return each client's number of samples, and its means of "loss" and the metrics.

        Shapes: the means are (clients,).
        Raises:
            DataError: a metric does not give one value an example.
        """
        was_training = module.training
        module.eval()
        held = [PythonState(each, buffers=True) for each in (module, self._task.loss)]
        try:
            data = CohortData.of(parts, device=self._device)
            if module not in self._graphs:
                self._graphs[module] = self._proven(module, data)
            graph = self._graphs[module]
            made = None if graph is None else self._at_once(graph, data)
            if made is None or any(each.changed() for each in held):
                made = self._one_by_one(module, parts, batch_size, held)
            return made
        finally:
            _restore(held)
            module.train(was_training)  # whose own `train` may set attributes

    @torch.no_grad()
    def _proven(self, module: torch.nn.Module, data: CohortData) -> torch.fx.GraphModule | None:
        inputs, targets = data.probe()
        graph = rowwise_graph(module, inputs)
        if graph is None:
            return None
        functions = (self._task.loss, *map(function_of_examples, self._task.metrics.values()))
        outputs = graph(inputs)
        return graph if all(rowwise_function(f, outputs, targets) for f in functions) else None

    @torch.no_grad()
    def _at_once(self, graph: torch.fx.GraphModule, data: CohortData) -> Measured:
        own = np.arange(data.rows.shape[1]) < data.counts[:, None]
        rows = torch.from_numpy(data.rows[own]).to(self._device)
        means = ExampleMeans(self._task)
        for start in range(0, len(rows), ROWS):
            chosen = rows[start : start + ROWS]
            inputs, targets = data.inputs[chosen], data.targets[chosen]
            outputs = graph(inputs)
            means.add(outputs, targets, self._task.loss(outputs, targets))
        starts = np.cumsum([0, *data.counts[:-1]])
        by_client: dict[str, NDArray[np.float64]] = {}
        for name, values in means.values().items():
            rows_of = values.cpu().double().numpy().reshape(len(values), -1)
            names = statistics_of(name, rows_of.shape[1]) if values.ndim > 1 else [name]
            found = np.add.reduceat(rows_of, starts) / data.counts[:, None]
            by_client |= zip(names, found.T, strict=True)
        return data.counts.tolist(), by_client

    def _one_by_one(
        self,
        module: torch.nn.Module,
        parts: Sequence[Samples],
        batch_size: int,
        held: Sequence[PythonState],
    ) -> Measured:
        counts, table = [], []
        for part in parts:
            _restore(held)
            count, means = evaluate(
                self._task, module, part.data, batch_size=batch_size, device=str(self._device)
            )
            counts.append(count)
            table.append(means)
        return counts, {name: np.array([each[name] for each in table]) for name in table[0]}


def _restore(held: Sequence[PythonState]) -> None:
    for each in held:
        each.restore()
