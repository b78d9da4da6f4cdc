"""What the executors' tests share: an app that shows whatever may go wrong, and cohorts for it.

The app trains a model with integer buffers on data of unequal sizes. Client 4 fails. The others
count their calls, and keep a tensor. A client named in runs/held writes its process id to
runs/begun and waits until it is killed; one named in runs/fatal ends its process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from meadow.apps.folder import App
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays, tensors_of
from meadow.run.execute import run_config_of
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.algorithms.algorithm import Update
from meadow.strategies.algorithms.combined import clients_of
from meadow.strategies.algorithms.mean import MeanAggregator
from meadow.strategies.rounds.broadcast import Broadcast

identify_process(run_id=1, node_id=0)

CLIENTS = 11
FAILS = 4

APP = """
import os, signal
from pathlib import Path
import meadow, torch, numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.clientapp import ClientApp
from torch import nn

RUNS = Path(__file__).parent / "runs"

def samples(seed, count):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long()

def named_in(name, node):
    path = RUNS / name
    return path.exists() and path.read_text() == str(node)

def load(site):
    node = site.index + 1
    if node == 4:
        raise OSError("the disk is gone")
    sizes = 20 + 7 * site.index
    return meadow.ClientData(train=samples(site.index, sizes), test=samples(50 + site.index, 10))

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))

task = meadow.Task(
    model=model,
    loss=lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"),
    client_data=load,
)
inner = meadow.client_app(task)
client = ClientApp()

def count(context):
    before = context.state.metric_records.get("calls", {"count": 0})["count"]
    context.state["calls"] = MetricRecord({"count": before + 1})
    context.state["memory"] = ArrayRecord([np.full(3, context.node_id * before, np.float32)])
    return before

@client.train()
def train(message, context):
    calls = count(context)
    if named_in("fatal", context.node_id):
        os.kill(os.getpid(), signal.SIGKILL)
    if named_in("held", context.node_id):
        (RUNS / "begun").write_text(str(os.getpid()))
        (RUNS / "never").read_text()
    reply = inner(message, context)
    reply.content["metrics"]["calls"] = calls
    return reply

@client.evaluate()
def evaluate(message, context):
    return inner(message, context)
"""

PYPROJECT = """
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
"""


def write_app(folder: Path) -> App:
    """Write the app into a new folder."""
    folder.mkdir()
    (folder / "app.py").write_text(APP)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "runs").mkdir()
    return App.load(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """An app, its clients, and the params that they begin with."""

    app: App
    clients: SimulatedClients
    params: dict[str, NDArray[Any]]

    @classmethod
    def of(cls, app: App) -> Arena:
        """Return an arena with clients that keep nothing yet."""
        from meadow.training.module_params import build_module, params_of_module

        clients = SimulatedClients(CLIENTS, run_id=1, run_config=run_config_of(app))
        params = params_of_module(build_module(app.load_object("app:task"), 0))
        return cls(app=app, clients=clients, params=params)

    def broadcast(self, kind: str, nodes: Sequence[int] = range(1, CLIENTS + 1)) -> Broadcast:
        """Return the instruction of a round."""
        settings = {"server-round": 1, "seed": 5, "batch-size": 10, "learning-rate": 0.1}
        content = {
            "arrays": params_to_arrays(self.params),
            "config": ConfigRecord(dict(settings)),  # type: ignore[arg-type]
        }
        return Broadcast(RecordDict(content), kind, nodes, group_id="1").numbered("1-1-")

    def calls(self) -> list[int]:
        """Return how often each client counted."""
        counts = []
        for node in range(1, CLIENTS + 1):
            calls = self.clients.context_of(node).state.metric_records.get("calls")
            counts.append(0 if calls is None else int(str(calls["count"])))
        return counts

    def aggregate(self, replies: Sequence[Message]) -> dict[str, NDArray[Any]]:
        """Return the weighted mean of the replies' params."""
        aggregator = MeanAggregator()
        total = aggregator.zero(self.params)
        good = [reply for reply in replies if reply.has_content()]
        for reply in sorted(good, key=lambda reply: reply.metadata.src_node_id):
            update = Update(
                client=reply.metadata.src_node_id,
                params=tensors_of(reply.content.array_records["arrays"]),
                weight=float(str(reply.content.metric_records["metrics"]["num-examples"])),
                clients=len(clients_of(reply)),
            )
            total = aggregator.fold(total, [update])
        return dict(aggregator.finish(total).mean)


def values_of(replies: Sequence[Message]) -> dict[int, dict[str, Any]]:
    """Return what single replies say, by client: metrics, and the bytes of params."""
    values: dict[int, dict[str, Any]] = {}
    for reply in replies:
        said: dict[str, Any] = values.setdefault(reply.metadata.src_node_id, {})
        assert reply.metadata.src_node_id in clients_of(reply)
        if reply.has_error():
            said["error"] = (reply.error.code, reply.error.reason)
            continue
        for metrics in reply.content.metric_records.values():
            said.update(metrics)
        for arrays in reply.content.array_records.values():
            params = arrays_to_params(arrays)
            said.update({name: array.tobytes() for name, array in params.items()})
    return values


def same_bits(left: dict[str, NDArray[Any]], right: dict[str, NDArray[Any]]) -> bool:
    """Whether two models are equal to the bit."""
    return list(left) == list(right) and all(
        left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name])
        for name in left
    )
