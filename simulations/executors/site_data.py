"""The data of simulated sites: loaded when first needed, the oldest ones forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import DataError
from ...task import ClientData, Task
from ...training.batches import in_pool, samples_in
from ...training.local.app import site_in
from ..population.clients import SimulatedClients

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["Samples", "SimulatedData", "SiteSamples"]

KEPT_BYTES_MAX = 2 << 30
"""Of data that clients hold for themselves alone."""
KEPT_CLIENTS_MAX = 1 << 15
"""A client whose data are a few row numbers costs some kilobytes of objects all the same."""
UNKNOWN_BYTES = 1 << 20
"""What a client is taken to hold whose data are no tensors."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Data, looked at once: their number, and of which tensors they are which rows.

    `pool` is None for data with code of their own; `places` is None for all rows of the pool.
    """

    data: Data
    count: int
    pool: tuple[torch.Tensor, torch.Tensor] | None
    places: NDArray[np.int64] | None

    @classmethod
    def of(cls, data: Data) -> Samples:
        """Look at a site's data.

        Raises:
            DataError: they are of no use.
        """
        pool, places = in_pool(data) or (None, None)
        rows = None if places is None else places.numpy()
        return cls(data, samples_in(data), pool, rows)

    @property
    def own_bytes(self) -> int:
        """The memory that these data hold for themselves alone, as far as that is known."""
        if self.pool is None:
            return UNKNOWN_BYTES
        if self.places is not None:
            return self.places.nbytes
        return sum(tensor.numel() * tensor.element_size() for tensor in self.pool)


@dataclass(frozen=True, slots=True)
class SiteSamples:
    """A site's training data, and test data if it has any."""

    train: Samples
    test: Samples | None


class SimulatedData:
    """Loads clients' data through the task, and keeps those that were loaded last.

    A client whose data are rows of tensors that others use too costs its row numbers only.

    Guarantees: memory does not grow with the number of clients beyond `KEPT_CLIENTS_MAX`.
    """

    def __init__(self, task: Task, clients: SimulatedClients) -> None:
        self._task = task
        self._clients = clients
        self._kept: dict[int, tuple[SiteSamples, int]] = {}
        self._bytes = 0

    def of(self, client: int) -> SiteSamples:
        """Return a client's data.

        Raises:
            DataError: the task gives something else than data; whatever the task's code raises.
        """
        kept = self._kept.get(client)
        if kept is not None:
            return kept[0]
        data = self._task.client_data(
            site_in(self._clients.node_config_of(client), self._clients.run_config)
        )
        if not isinstance(data, ClientData):
            raise DataError(
                f"client_data must return a meadow.ClientData, got a {type(data).__name__}"
            )
        train = Samples.of(data.train)
        if not train.count:
            raise DataError("there are no samples; a site's data must not be empty")
        samples = SiteSamples(train, None if data.test is None else Samples.of(data.test))
        test = samples.test
        size = samples.train.own_bytes + (test.own_bytes if test else 0)
        self._kept[client] = samples, size
        self._bytes += size
        while len(self._kept) > 1 and self._are_too_many():
            _, dropped = self._kept.pop(next(iter(self._kept)))
            self._bytes -= dropped
        return samples

    def _are_too_many(self) -> bool:
        return self._bytes > KEPT_BYTES_MAX or len(self._kept) > KEPT_CLIENTS_MAX
