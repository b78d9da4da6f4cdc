"""DP-SGD of many clients at once: `training/loop/dp_sgd.py` with a leading client axis.

Every client draws its own examples in every step. Batches are padded to the largest one of the
step; what is padding is clipped to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ....errors import DataError
from ....machine.accelerators import widest_float
from ....privacy.dp.example_level import ExampleTerms
from ....privacy.dp.mechanisms.noise import generator_of
from ....randomness.entropy import system_entropy
from ....randomness.seeded import seeded
from ....randomness.seeds import derive
from ....task import Task
from ....training.example_separation import EXAMINED, check_separation
from ....training.loop.dp_sgd import clipped_sums, draw_examples, step_noise
from ....training.loop.optimizers import descend, new_slots
from ....training.objectives import proximal
from ....training.settings import TrainingSettings
from .cohort_data import CohortData
from .stacked_module import StackedModule, Tensors
from .stacked_training import StackedTrained

__all__ = ["train_stacked_dp_sgd"]

GRADIENT_BYTES = 24 << 20
"""What the gradients of single examples take at once, if more than one client is there: more would
leave the processor's cache."""


def train_stacked_dp_sgd(
    task: Task,
    stacked: StackedModule,
    data: CohortData,
    settings: TrainingSettings,
    terms: ExampleTerms,
    *,
    clients: Sequence[int],
) -> StackedTrained:
    """Train the clients (node ids, in the order of `data`) from the module's params.

    Guarantees: each client's params are private as `terms.event(settings.epochs)` says, and
        distributed as those of the sequential trainer. There are no means of losses or metrics.
    Raises:
        DataError: the model has buffers, or an example has a part in another's loss.
    """
    if stacked.mixes_examples or stacked.buffers:
        raise DataError("the model has buffers, or looks across a batch's examples")
    first = torch.from_numpy(data.rows[0, np.linspace(0, data.counts[0] - 1, EXAMINED).astype(int)])
    first = first.to(data.inputs.device)
    check_separation(task, stacked.module, data.inputs[first], data.targets[first])
    training = _StackedDpSgd(stacked, data, settings, terms, len(clients))
    stream = derive(settings.seed, settings.server_round, int(clients[0]), "training")
    with seeded(stream, str(data.inputs.device)):
        for step in range(1, terms.steps(settings.epochs) + 1):
            training.step(step)
    return StackedTrained(dict(stacked.trained), training.params, {})


class _StackedDpSgd:
    def __init__(
        self,
        stacked: StackedModule,
        data: CohortData,
        settings: TrainingSettings,
        terms: ExampleTerms,
        clients: int,
    ) -> None:
        self._stacked, self._data, self._settings, self._terms = stacked, data, settings, terms
        self._sampling = generator_of(system_entropy)
        self.params, _ = stacked.stack(clients)
        self._slots = new_slots(list(self.params.values()), settings)
        self._drawn = torch.from_numpy(data.counts * terms.rate)
        values = sum(tensor.numel() * tensor.element_size() for tensor in stacked.trained.values())
        self._rows = max(1, GRADIENT_BYTES // max(1, values))

    def step(self, number: int) -> None:
        """Make one step of every client."""
        terms, settings, params = self._terms, self._settings, list(self.params.values())
        sums = [torch.zeros_like(each, dtype=widest_float(each.device)) for each in params]
        places = [draw_examples(count, terms.rate, self._sampling) for count in self._data.counts]
        width = max(map(len, places))
        together = max(1, self._rows // max(1, width))
        for low in range(0, len(places), together):
            self._add(sums, places[low : low + together], low)
        gradients = []
        for total, start in zip(sums, self._stacked.trained.values(), strict=True):
            drawn = self._drawn.to(total.device, total.dtype).view(-1, *(1 for _ in start.shape))
            mean = (total + step_noise(total, terms, self._sampling)) / drawn
            gradients.append(mean.to(start.dtype))
        if settings.proximal_mu:
            starts = self._stacked.trained.values()
            gradients = [
                proximal(gradient, param, start, mu=settings.proximal_mu)
                for gradient, param, start in zip(gradients, params, starts, strict=True)
            ]
        descend(params, gradients, self._slots, settings, step=number)

    def _add(self, sums: list[torch.Tensor], places: list[np.ndarray], low: int) -> None:
        """Add the clipped gradients of the examples that some clients drew, from `low` on."""
        high, width = low + len(places), max(map(len, places))
        if not width:
            return
        rows, own = np.zeros((len(places), width), np.int64), np.zeros((len(places), width), bool)
        for place, drawn in enumerate(places):
            rows[place, : len(drawn)] = self._data.rows[low + place, drawn]
            own[place, : len(drawn)] = True
        device = self._data.inputs.device
        flat = torch.from_numpy(rows.reshape(-1)).to(device)
        inputs, targets = self._data.inputs[flat], self._data.targets[flat]
        inputs = inputs.view(*rows.shape, *inputs.shape[1:])
        targets = targets.view(*rows.shape, *targets.shape[1:])
        params: Tensors = {name: tensor[low:high] for name, tensor in self.params.items()}
        single = list(self._stacked.example_gradients(params, inputs, targets).values())
        rows_of = [each.flatten(2) for each in single]
        counted = torch.from_numpy(own).to(device)
        added = clipped_sums(rows_of, self._terms.clip_norm, counted)
        for total, each in zip(sums, added, strict=True):
            total[low:high] += each.view_as(total[low:high])
