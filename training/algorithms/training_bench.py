"""What an algorithm of one's own trains with, where it makes the steps itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ...errors import DataError, NothingLearnedError
from ..additive_metrics import value_names
from ..batches import Batch, batches_of
from ..evaluation import ExampleMeans
from ..local_round import Tensors
from ..loop.optimizers import local_optimizer
from ..loop.trainer import batch_order_seed
from ..settings import TrainingSettings

if TYPE_CHECKING:
    from ...task import Data, Task

__all__ = ["TrainingBench"]


class TrainingBench:
    """A client's module, its batches and its optimizer, for one round.

    Attributes:
        module: what is trained, in place; it has the params that were sent.
        start: its params and buffers before the round.
        client_state: what the client keeps, by the names of `LocalAlgorithm.keeps` and `state`.
        shared: the auxiliary tensors that came with the params.
        settings: of [training], for this round.
        steps: how many steps were made.
        examples: how many samples an epoch has.
    """

    def __init__(
        self,
        task: Task,
        module: torch.nn.Module,
        data: Data,
        settings: TrainingSettings,
        *,
        client: int,
        device: str,
        start: Tensors,
        client_state: Tensors,
        shared: Tensors,
    ) -> None:
        if settings.precision != "fp32" or settings.accumulation_steps > 1:
            raise DataError(
                f"algorithm {settings.algorithm!r} makes its steps itself: it goes with "
                'training.precision = "fp32" and training.accumulation_steps = 1 alone'
            )
        self.module = module.train()
        self.start, self.client_state, self.shared = start, client_state, shared
        self.settings = settings
        self.steps = self.examples = 0
        self._task, self._data, self._device = task, data, torch.device(device)
        self._order = batch_order_seed(settings, client)
        self._params = [param for param in module.parameters() if param.requires_grad]
        self._optimizer = local_optimizer(self._params, settings)
        self._means = ExampleMeans(task)

    def batches(self) -> Iterator[Batch]:
        """Yield the round's batches, all epochs of them, as clients of other algorithms get them."""
        settings = self.settings
        for epoch in range(settings.epochs):
            self.examples = 0
            for inputs, targets in batches_of(
                self._data, settings.batch_size, seed=self._order, epoch=epoch
            ):
                self.examples += len(targets)
                yield inputs.to(self._device), targets.to(self._device)

    def losses(
        self, inputs: torch.Tensor, targets: torch.Tensor, *, note: bool = True
    ) -> torch.Tensor:
        """Return the task's loss of each example, (batch,); with `note` they count for the
        metrics that the client reports."""
        outputs = self.module(inputs)
        losses = self._task.loss(outputs, targets)
        if note:
            self._means.add(outputs, targets, losses)
        return losses

    def step(self) -> None:
        """Make a step of the local optimizer from the params' `.grad`, and forget these."""
        if self.settings.gradient_clip_norm:
            torch.nn.utils.clip_grad_norm_(self._params, self.settings.gradient_clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.steps += 1

    def means(self) -> dict[str, float]:
        """Return the means of "loss" and the task's metrics over all examples that count.

        Raises:
            NothingLearnedError: none counted, or the loss is not finite.
        """
        count = self._means.examples
        names = value_names(self._task)
        found = (
            {n: s / count for n, s in zip(names, self._means.sums(), strict=True)} if count else {}
        )
        if not math.isfinite(found.get("loss", math.nan)):
            raise NothingLearnedError(
                f"the training loss of algorithm {self.settings.algorithm!r} is "
                f"{found.get('loss')} in round {self.settings.server_round}; lower "
                "training.learning_rate, or look for invalid values in the data"
            )
        return found
