"""What a client changes in the sum of a cohort that trains in one tensor: never more than the clip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, MessageType, RecordDict
from torch import nn

import meadow
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.privacy.dp.mechanisms.clipping import Clipping
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.executors.vectorized import linear_training
from meadow.simulations.executors.vectorized.executor import VectorizedExecutor
from meadow.simulations.executors.vectorized.first_layers import FirstOnce, FirstRepeated
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.rounds.broadcast import Broadcast
from meadow.training.module_params import build_module, params_of_module

identify_process(run_id=1, node_id=0)

CLIENTS = 65
BOUND = 1 + 1e-12
"""What a sum may move by, in clips: float64 sums of 65 clients are no further from the exact ones."""
ODD = CLIENTS - 1
"""The site whose part is measured."""

Records = Callable[[int], tuple[torch.Tensor, torch.Tensor]]


def alike(site: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A sum of what all clients have alike is far from each part: rounding it does not average out."""
    return torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[3.1], [3.3]])


def cancelling(site: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Large steps, there and nearly back."""
    if site != ODD:
        return alike(site)
    return torch.tensor([[1.0, 0.5], [1.0, 0.5]]), torch.tensor([[30_000.0], [-29_999.0]])


def large(site: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A change whose square no float32 is large enough for."""
    return (torch.tensor([[1e10, 0.0]]), torch.tensor([[1e15]])) if site == ODD else alike(site)


def task_of(records: Records, dtype: torch.dtype) -> meadow.Task:
    """A client's delta is the negative sum of its targets times its inputs."""

    def load(site: meadow.Site) -> meadow.ClientData:
        inputs, targets = records(site.index)
        return meadow.ClientData(train=(inputs.to(dtype), targets.to(dtype)))

    return meadow.Task(
        model=lambda: nn.Linear(2, 1).to(dtype),
        loss=lambda out, want: (out * want).sum(1),
        client_data=load,
    )


def executor_of(task: meadow.Task) -> VectorizedExecutor:
    """Return one that fails rather than train clients one by one."""

    def told(kind: str, detail: Any) -> None:
        raise AssertionError(f"{kind}: {detail}")

    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    other = SequentialExecutor(meadow.client_app(task, device="cpu"), clients)
    sink = EventSink(event=told)
    return VectorizedExecutor(task, clients, device="cpu", combine=True, other=other, sink=sink)


def moved(task: meadow.Task, executor: VectorizedExecutor, clipping: Clipping) -> float:
    """Return by how much the sum changes when the last client is left out, in clips."""
    params = {n: np.zeros_like(v) for n, v in params_of_module(build_module(task, 5)).items()}
    settings = {"batch-size": 1, "seed": 5, "server-round": 1, "learning-rate": 1.0}
    noise = {"dp-noise-multiplier": 1.0, "dp-noise": "server"}
    config = ConfigRecord({**settings, **clipping.record(), **noise})
    content = RecordDict({"arrays": params_to_arrays(params), "config": config})
    sums = []
    for count in (CLIENTS - 1, CLIENTS):
        clients = tuple(range(1, count + 1))
        order = Broadcast(content, MessageType.TRAIN, clients, group_id="1", id_prefix="m-")
        (reply,) = executor.execute(order)
        made = arrays_to_params(reply.content.array_records["arrays"])
        assert all(each.dtype == np.float64 for each in made.values())
        sums.append(np.concatenate([each.ravel() for each in made.values()]) * count)
    return float(np.linalg.norm(sums[1] - sums[0])) / clipping.clip_norm


WAYS: dict[str, Callable[..., Any] | None] = {
    "mapped": None,
    "layers": lambda *_: None,
    "first once": lambda *_: FirstOnce,
    "first repeated": lambda *_: FirstRepeated,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("records", [alike, cancelling, large])
@pytest.mark.parametrize("way", WAYS)
def test_a_client_moves_the_sum_by_the_clip_at_most(
    way: str, records: Records, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its steps are, however they are kept, and however many others there are."""
    monkeypatch.setattr(linear_training, "CACHED_BYTES", 0)
    if kind := WAYS[way]:
        monkeypatch.setattr(linear_training, "_kind_of", kind)
    else:
        monkeypatch.setattr(linear_training.LinearModules, "of", lambda stacked: None)
    task = task_of(records, dtype)
    executor = executor_of(task)
    clips = [Clipping(kind="fixed", clip_norm=norm) for norm in (0.1, 0.23, 0.37, 0.71, 0.977)]
    clips += [Clipping(kind="per_layer", clip_norm=0.3), Clipping(kind="adaptive", clip_norm=0.3)]
    found = [moved(task, executor, clipping) for clipping in clips]
    assert min(found) > 0.6 and max(found) <= BOUND, found
