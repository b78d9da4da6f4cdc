"""What a trained cohort answers: one reply that stands for all clients, or one a client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from ....errors import DataError, UpdateError
from ....flower.messages import arrays_to_params, params_to_arrays
from ....machine.accelerators import wide
from ....privacy.dp.mechanisms.clipping import WITHIN_KEY, Clipping
from ....privacy.dp.noise_terms import NoiseTerms
from ....strategies.algorithms.combined import EXAMPLES_KEY, ClientTable
from ....strategies.rounds.broadcast import Broadcast
from ....training.local.clipped_reply import clipped_reply
from ....training.module_params import params_of_module, to_array
from ....training.settings import TrainingSettings
from ..contract import EventSink, error_reply
from .clipped_sums import ClippedSums
from .example_values import Means, Trained, Weights
from .stacked_module import StackedModule

__all__ = ["CohortReplies"]

BLOCK = 1 << 15
"""So many values of a mean are computed at once."""


class CohortReplies:
    """Takes a cohort's training chunk by chunk.

    The combined params are those before the round plus the mean delta, weighted by the clients'
    numbers of examples and summed in float64 over chunks; and so are an algorithm's auxiliary.

    Attributes:
        order: what the clients were asked.
        arrays: what the clients were sent.
        config: the ConfigRecord of their instruction.
        clipping: how their deltas are bounded, if they are.
    """

    def __init__(
        self,
        order: Broadcast,
        module: torch.nn.Module,
        settings: TrainingSettings,
        *,
        combine: bool,
        in_group: bool = False,
        sink: EventSink,
    ) -> None:
        """`in_group`: whether means are not rounded, and evaluations not combined, since the cohort
        is a group of a larger one."""
        self.order = order
        self._places = {client: place for place, client in enumerate(order.clients)}
        self._module = module
        self.arrays = cast(ArrayRecord, order.content["arrays"])
        self._settings = settings
        self.config = cast(ConfigRecord, order.content["config"])
        self.clipping, self._noise = Clipping.of(self.config), NoiseTerms.of(self.config)
        self._combine = combine and not self.noise_is_local
        self._in_group = in_group
        self._sink = sink
        self._table = ClientTable()
        self._sums: dict[str, torch.Tensor] = {}
        self._stacked: StackedModule | None = None

    def message_to(self, client: int) -> Message:
        """Return the instruction that a client was sent."""
        return self.order[self._places[client]]

    def add(
        self, stacked: StackedModule, trained: Trained, clients: Sequence[int], counts: list[int]
    ) -> Iterator[Message]:
        """Take a chunk; yields the replies that nothing else is added to."""
        self._stacked = stacked
        losses = trained.means.get("loss", np.zeros(len(clients)))
        counted = (
            np.isfinite(losses) | self.noise_is_local
        )  # with its own noise nothing else is told
        good = np.flatnonzero(counted).tolist()
        for row in np.flatnonzero(~counted).tolist():
            yield error_reply(
                self.message_to(clients[row]), self._not_finite(losses[row]), self._sink
            )
        if not self._combine:
            for row in good:
                yield self.single(stacked, trained, row, clients[row], counts[row])
        elif self.clipping is not None:
            yield from self._add_clipped(trained, good, clients, self.clipping)
        elif good:
            weights = torch.tensor([counts[row] for row in good], dtype=torch.float32)
            self._add_sums(trained, good, len(counts), lambda name: weights)
            self._table.add(
                [clients[row] for row in good],
                [float(counts[row]) for row in good],
                {name: values[good].tolist() for name, values in trained.means.items()},
            )

    def finish(self) -> Iterator[Message]:
        """Yield the combined reply, if there is one."""
        if not self._table.clients:
            return
        assert self._stacked is not None
        record = self._table.record()
        total = float(record[EXAMPLES_KEY])  # type: ignore[arg-type]
        params = {}
        for name, values in arrays_to_params(self.arrays).items():
            delta = self._sums.get(self._stacked.owners.get(name, name))
            if delta is None:
                params[name] = values
            elif self._in_group or (self.clipping is not None and values.dtype.kind in "fV"):
                params[name] = _mean(
                    values, delta, total
                )  # cast after the noise, or the last group
            else:
                params[name] = _moved(values, delta, total)
        yield self._reply(self._table.clients[0], params, record)

    def measured(
        self, clients: Sequence[int], counts: Sequence[int], means: Means
    ) -> Iterator[Message]:
        """Yield what an evaluation answers: the clients' examples and means."""
        alone = [[row] for row in range(len(clients))]
        together = self._combine and not self._in_group
        for rows in [list(range(len(clients)))] if together else alone:
            table = ClientTable()
            table.add(
                [clients[row] for row in rows],
                [float(counts[row]) for row in rows],
                {name: values[rows].tolist() for name, values in means.items()},
            )
            content = RecordDict({"metrics": table.record()})
            yield Message(content, reply_to=self.message_to(clients[rows[0]]))

    @property
    def noise_is_local(self) -> bool:
        """Whether each client adds noise of its own, which is another one every time."""
        return self._noise is not None and self._noise.is_local

    def single(
        self, stacked: StackedModule, trained: Trained, row: int, client: int, count: int
    ) -> Message:
        """Return the reply of one client alone."""
        own = trained.of_client(row)
        params = {
            name: to_array(own[owner], copy=True) if owner in own else to_array(tensor)
            for (name, tensor), owner in zip(
                self._module.state_dict().items(), stacked.owners.values(), strict=True
            )
        }
        for name, array in self.arrays.items():
            if name not in params:
                params[name] = to_array(own[name], copy=True) if name in own else array.numpy()
        means = {name: float(values[row]) for name, values in trained.means.items()}
        reply = self._reply(client, params, MetricRecord({EXAMPLES_KEY: count, **means}))
        if self.clipping is not None:
            before = params_to_arrays(params_of_module(self._module))
            arrays, metrics = clipped_reply(
                before, reply.content.array_records["arrays"], self.clipping, self._noise
            )
            reply.content = RecordDict({"arrays": arrays, "metrics": metrics})
        return reply

    def _reply(
        self, client: int, params: dict[str, NDArray[Any]], metrics: MetricRecord
    ) -> Message:
        content = RecordDict({"arrays": params_to_arrays(params), "metrics": metrics})
        return Message(content, reply_to=self.message_to(client))

    def _add_clipped(
        self, trained: Trained, good: list[int], clients: Sequence[int], clipping: Clipping
    ) -> Iterator[Message]:
        """Add up the clipped deltas; yields an error reply for each client whose delta is not finite."""
        assert self._stacked is not None
        within = ClippedSums(clipping, self._stacked, self._sums).add(trained, good)
        added = np.isfinite(within)
        for place in np.flatnonzero(~added).tolist():
            error = UpdateError("the update has values that are not finite")
            yield error_reply(self.message_to(clients[good[place]]), error, self._sink)
        if added.any():
            columns: dict[str, Sequence[float | None]] = {}
            if clipping.kind == "adaptive":
                columns[WITHIN_KEY] = within[added].tolist()
            places = np.flatnonzero(added).tolist()
            counted = [clients[good[place]] for place in places]
            self._table.add(counted, [1.0] * len(counted), columns)

    def _add_sums(self, trained: Trained, good: list[int], clients: int, weights: Weights) -> None:
        every = len(good) == clients
        for name, delta in trained.deltas(None if every else good, weights).items():
            before = self._sums.get(name)
            self._sums[name] = delta if before is None else wide(before) + wide(delta)

    def _not_finite(self, loss: float) -> DataError:
        return DataError(
            f"the training loss is {loss} in round {self._settings.server_round}; lower "
            "training.learning_rate, set training.gradient_clip_norm, or look for invalid values "
            "in the data"
        )


def _mean(values: NDArray[Any], delta: torch.Tensor, total: float) -> NDArray[Any]:
    """Return params after the mean delta, in float64."""
    return np.asarray(values.astype(np.float64) + wide(delta.cpu()).numpy() / total)


def _moved(values: NDArray[Any], delta: torch.Tensor, total: float) -> NDArray[Any]:
    """Return params after the mean delta, in their own dtype; block by block, in the cache."""
    moved = np.empty(values.shape, values.dtype)
    given, added, flat = values.reshape(-1), delta.cpu().reshape(-1).numpy(), moved.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        block = slice(start, start + BLOCK)
        mean = added[block].astype(np.float64)
        mean /= total
        mean += given[block]
        if values.dtype.kind in "iu":
            np.rint(mean, out=mean)
        flat[block] = mean >= 0.5 if values.dtype.kind == "b" else mean.astype(values.dtype)
    return moved
