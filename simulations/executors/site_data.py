"""The data of simulated sites: loaded when first needed, the least recent ones forgotten."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import torch

from ...batches import in_pool, samples_in
from ...client.app import site_of
from ...errors import DataError
from ...task import ClientData, Task
from ..clients import SimulatedClients

if TYPE_CHECKING:
    from ...task import Data

__all__ = ["SiteData"]

KEPT_BYTES_MAX = 2 << 30
UNKNOWN_BYTES = 1 << 20
"""What a client is taken to hold whose data are no tensors."""


class SiteData:
    """Loads clients' data through the task, and keeps those that were used last.

    A client whose data are rows of tensors that others use too costs its row numbers only.
    """

    def __init__(self, task: Task, clients: SimulatedClients) -> None:
        self._task = task
        self._clients = clients
        self._kept: OrderedDict[int, tuple[ClientData, int]] = OrderedDict()
        self._bytes = 0

    def of(self, client: int) -> ClientData:
        """Return a client's data.

        Raises:
            DataError: the task gives something else than data; whatever the task's code raises.
        """
        if client in self._kept:
            self._kept.move_to_end(client)
            return self._kept[client][0]
        data = self._task.client_data(site_of(self._clients.context_of(client)))
        if not isinstance(data, ClientData):
            raise DataError(
                f"client_data must return a meadow.ClientData, got a {type(data).__name__}"
            )
        samples_in(data.train)  # raises where the data are of no use
        size = _own_bytes(data.train) + (0 if data.test is None else _own_bytes(data.test))
        self._kept[client] = data, size
        self._bytes += size
        while self._bytes > KEPT_BYTES_MAX and len(self._kept) > 1:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._bytes -= dropped
        return data


def _own_bytes(data: Data) -> int:
    """Return the memory that these data hold for themselves alone, if that can be known."""
    pooled = in_pool(data)
    if pooled is None:
        return UNKNOWN_BYTES
    tensors, rows = pooled
    if rows is not None:
        return rows.numel() * rows.element_size()
    return sum(_bytes_of(tensor) for tensor in tensors)


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
