"""A query on the vectorized executor: counts without a second load, equal to the clients' own."""

from __future__ import annotations

import torch
from flwr.app import Message, MessageType, RecordDict
from torch import nn

from meadow import ClientData, Site, Task, cross_entropy
from meadow.flower.messages import identify_process
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.executors.vectorized.executor import VectorizedExecutor
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.rounds.broadcast import Broadcast
from meadow.training.local.app import client_app

identify_process(run_id=1, node_id=0)

FAILS, EMPTY = 3, 4


def load(site: Site) -> ClientData:
    if site.index + 1 == FAILS:
        raise OSError("the disk is gone")
    count = 0 if site.index + 1 == EMPTY else 3 + site.index
    data = torch.ones(count, 2), torch.zeros(count, dtype=torch.long)
    return ClientData(train=data, test=data if site.index % 2 else None)


def answers(replies: list[Message]) -> dict[int, object]:
    """Return each client's counts, or its error."""
    return {
        reply.metadata.src_node_id: dict(reply.content["metrics"])
        if reply.has_content()
        else reply.error.reason
        for reply in replies
    }


def test_counts_are_those_of_the_clients_and_data_load_once() -> None:
    """Clients without samples and clients that fail answer as they would alone."""
    loaded: list[int] = []

    def counted(site: Site) -> ClientData:
        loaded.append(site.index + 1)
        return load(site)

    task = Task(model=lambda: nn.Linear(2, 2), loss=cross_entropy, client_data=counted)
    clients = SimulatedClients(5, run_id=1, run_config={})
    alone = SequentialExecutor(client_app(task, device="cpu"), clients, sink=EventSink())
    executor = VectorizedExecutor(task, clients, device="cpu", combine=True, other=alone)
    order = Broadcast(RecordDict(), MessageType.QUERY, range(1, 6), group_id="").numbered("n-")
    found = answers(list(executor.execute(order)))
    good = [client for client in loaded if client not in (FAILS, EMPTY)]
    assert sorted(good) == [1, 2, 5]
    assert found == answers(list(alone.execute(order)))
    assert set(found) == {1, 2, 3, 4, 5}
    list(executor.execute(order.to([1, 2, 5])))
    assert [loaded.count(client) for client in (1, 2, 5)] == [2, 2, 2]  # once by each executor
