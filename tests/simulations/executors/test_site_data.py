"""`SimulatedData`: which clients' data stay in memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from meadow import ClientData, Site, Task
from meadow.simulations.executors import site_data
from meadow.simulations.executors.site_data import SimulatedData
from meadow.simulations.population.clients import SimulatedClients

POOL = TensorDataset(torch.arange(8.0).reshape(8, 1), torch.arange(8.0))


def data_of(clients: int, loaded: list[int], *, shared: bool) -> SimulatedData:
    """Return the data of clients that have two rows each; `loaded` notes every load."""

    def load(site: Site) -> ClientData:
        loaded.append(site.index)
        own = TensorDataset(torch.ones(2, 1), torch.ones(2))
        return ClientData(train=Subset(POOL, [site.index % 8, 0]) if shared else own)

    task = Task(model=lambda: nn.Linear(1, 1), loss=nn.functional.mse_loss, client_data=load)
    return SimulatedData(task, SimulatedClients(clients, run_id=1, run_config={}))


def test_a_client_is_loaded_once_while_it_is_kept() -> None:
    """Asking twice for a client's data loads them once."""
    loaded: list[int] = []
    data = data_of(4, loaded, shared=True)
    assert data.of(2) is data.of(2)
    assert loaded == [1]


def test_no_more_clients_are_kept_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that share all their tensors are dropped too, the oldest first, and load again."""
    monkeypatch.setattr(site_data, "KEPT_CLIENTS_MAX", 3)
    loaded: list[int] = []
    data = data_of(1_000_000, loaded, shared=True)
    for client in (1, 500_000, 1_000_000, 7):
        data.of(client)
    data.of(500_000)
    assert loaded == [0, 499_999, 999_999, 6]
    data.of(1)
    assert loaded[-1] == 0


def test_no_more_bytes_are_kept_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients with tensors of their own, 16 bytes each: two of them fit into 32 bytes."""
    monkeypatch.setattr(site_data, "KEPT_BYTES_MAX", 32)
    loaded: list[int] = []
    data = data_of(4, loaded, shared=False)
    for client in (1, 2, 3, 2, 1):
        data.of(client)
    assert loaded == [0, 1, 2, 0]
