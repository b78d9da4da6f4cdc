"""The vectorized executor: which way it takes, what it does with bad clients, and chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, MessageType
from torch import nn

import meadow
from meadow.flower.messages import arrays_to_params
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.executors.vectorized import executor as vectorized
from meadow.simulations.executors.vectorized import linear_training
from meadow.simulations.executors.vectorized.executor import VectorizedExecutor
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.algorithms.combined import columns_in

from ..test_agreement import CLIENTS, INPUTS, TARGETS, order_of, share, task_of

SGD = {"learning-rate": 0.1}


class Branching(nn.Module):
    """Looks at its values to decide what to do: nothing that can be mapped over clients."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 4)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.body(inputs.flatten(1)) * self.scale
        return outputs if outputs.sum() > 0 else outputs * 2


def executor_of(
    task: meadow.Task, *, combine: bool = True, told: list[Any] | None = None
) -> VectorizedExecutor:
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    heard: list[Any] = [] if told is None else told
    sink = EventSink(
        event=lambda kind, detail: heard.append((kind, detail)),
        traceback=lambda node, text: heard.append(("traceback", node)),
    )
    other = SequentialExecutor(meadow.client_app(task, device="cpu"), clients, sink=sink)
    return VectorizedExecutor(task, clients, device="cpu", combine=combine, other=other, sink=sink)


def trained(task: meadow.Task, **options: Any) -> list[Message]:
    return list(executor_of(task, **options).execute(order_of(task, MessageType.TRAIN, SGD)))


def with_data(task: meadow.Task, load: Any) -> meadow.Task:
    return meadow.Task(model=task.model, loss=task.loss, metrics=task.metrics, client_data=load)


@pytest.mark.parametrize(
    ("model", "settings", "linear"),
    [
        ("mlp", SGD, True),
        ("mlp", {**SGD, "epochs": 2}, True),
        ("mlp", {**SGD, "momentum": 0.9}, True),
        ("mlp", {**SGD, "proximal-mu": 0.1}, True),
        ("mlp", {**SGD, "weight-decay": 0.1}, True),
        ("mlp", {**SGD, "gradient-clip-norm": 1.0}, False),
        ("mlp", {**SGD, "optimizer": "adam"}, False),
        ("convolutional", SGD, False),
        ("tied", SGD, False),
    ],
)
def test_linear_layers_are_taken_for_themselves(
    model: str, settings: dict[str, Any], linear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast way is taken where it applies, and only there."""
    taken: list[bool] = []
    fast = linear_training.train_linear

    def noting(*arguments: Any, **options: Any) -> Any:
        taken.append(True)
        return fast(*arguments, **options)

    monkeypatch.setattr(vectorized, "train_linear", noting)
    task = task_of(model)
    list(executor_of(task).execute(order_of(task, MessageType.TRAIN, settings)))
    assert bool(taken) is linear


def test_what_linear_layers_cannot_do_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the fast way raises, the cohort is still one tensor."""
    task = task_of("mlp")
    order = order_of(task, MessageType.TRAIN, SGD)

    def raising(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("not so")

    monkeypatch.setattr(vectorized, "train_linear", raising)
    mapped: list[bool] = []
    stacked = vectorized.train_stacked

    def noting(*arguments: Any, **options: Any) -> Any:
        mapped.append(True)
        return stacked(*arguments, **options)

    monkeypatch.setattr(vectorized, "train_stacked", noting)
    (reply,) = executor_of(task).execute(order)
    assert mapped and not reply.has_error()


def test_what_cannot_be_mapped_runs_one_by_one() -> None:
    """The run goes on, says so once, and names the module."""
    told: list[Any] = []
    task = task_of("mlp")
    task = meadow.Task(
        model=lambda: nn.Sequential(nn.Flatten(), Branching()),
        loss=task.loss,
        metrics=task.metrics,
        client_data=task.client_data,
    )
    executor = executor_of(task, told=told)
    for _ in range(2):
        replies = list(executor.execute(order_of(task, MessageType.TRAIN, SGD)))
        assert sorted(r.metadata.src_node_id for r in replies) == list(range(1, CLIENTS + 1))
        assert not any(reply.has_error() for reply in replies)
    ((kind, detail),) = told
    assert kind == "not_vectorized" and "(in the module '1', a Branching)" in detail["reason"]


@pytest.mark.parametrize("combine", [False, True])
@pytest.mark.parametrize("model", ["mlp", "convolutional"])
def test_a_client_whose_loss_is_not_finite_fails_alone(model: str, combine: bool) -> None:
    """It is an error reply; the others are as if it had not been asked."""

    def load(site: meadow.Site) -> meadow.ClientData:
        rows = list(share(site.index))
        inputs = INPUTS[rows].clone()
        if site.index == 2:
            inputs[1] = torch.inf
        return meadow.ClientData(train=(inputs, TARGETS[rows]))

    whole = task_of(model)
    replies = trained(with_data(whole, load), combine=combine)
    (bad,) = [reply for reply in replies if reply.has_error()]
    assert bad.metadata.src_node_id == 3 and "the training loss is" in bad.error.reason
    good = [reply for reply in replies if reply.has_content()]
    counted = [c for r in good for c in columns_in_clients(r)]
    assert sorted(counted) == [1, 2, 4, 5, 6, 7]
    for reply in good:
        for values in arrays_to_params(reply.content.array_records["arrays"]).values():
            assert np.isfinite(values).all()


def columns_in_clients(reply: Message) -> list[int]:
    metrics = reply.content.metric_records["metrics"]
    found = metrics.get("combined-clients")
    return (
        [int(each) for each in found] if isinstance(found, list) else [reply.metadata.src_node_id]
    )


def test_a_client_whose_data_do_not_load_fails_alone() -> None:
    """What the task's code raises is told with the client's name."""

    def load(site: meadow.Site) -> meadow.ClientData:
        if site.index == 4:
            raise OSError("the disk is gone")
        rows = list(share(site.index))
        return meadow.ClientData(train=(INPUTS[rows], TARGETS[rows]))

    told: list[Any] = []
    replies = trained(with_data(task_of("mlp"), load), told=told)
    (bad,) = [reply for reply in replies if reply.has_error()]
    assert (bad.metadata.src_node_id, bad.error.reason) == (5, "OSError: the disk is gone")
    assert ("traceback", 5) in told


@pytest.mark.parametrize("model", ["mlp", "batch norm", "dropout"])
def test_chunks_change_nothing_but_rounding(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cohort that does not fit into memory is trained piece by piece."""
    task = task_of(model)
    (whole,) = trained(task)
    monkeypatch.setattr(vectorized, "CHUNK_BYTES", 1)
    (pieces,) = trained(task)
    found = arrays_to_params(pieces.content.array_records["arrays"])
    for name, values in arrays_to_params(whole.content.array_records["arrays"]).items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    tables = [columns_in(r.content.metric_records["metrics"])["loss"] for r in (whole, pieces)]
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-5)


@pytest.mark.parametrize("most", range(1, CLIENTS + 2))
def test_chunks_are_as_large_as_each_other(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As few as fit, and no small one at the end, which would cost nearly as much."""
    sizes: list[int] = []

    train = VectorizedExecutor._train_chunk

    def noting(self: VectorizedExecutor, chunk: Any, *others: Any) -> Any:
        sizes.append(len(chunk))
        return train(self, chunk, *others)

    monkeypatch.setattr(VectorizedExecutor, "_train_chunk", noting)
    monkeypatch.setattr(VectorizedExecutor, "_chunk_size", lambda *of_what: most)
    trained(task_of("mlp"))
    assert sum(sizes) == CLIENTS and max(sizes) <= most
    assert len(sizes) == -(-CLIENTS // most) and max(sizes) - min(sizes) <= 1


def test_a_loss_that_is_no_loss_an_example_is_an_error() -> None:
    """Every client's reply says what is wrong, and the remedy."""
    task = task_of("mlp")
    task = meadow.Task(
        model=task.model,
        loss=lambda out, want: nn.functional.cross_entropy(out, want),
        client_data=task.client_data,
    )
    replies = trained(task)
    assert len(replies) == CLIENTS
    for reply in replies:
        assert "loss must give one value per example" in reply.error.reason


def test_samples_that_were_changed_are_looked_at_again() -> None:
    """A cohort's data are laid side by side once, and again where somebody wrote into them."""
    own = [(torch.randn(20, 1, 4, 4), torch.arange(20) % 4) for _ in range(CLIENTS)]
    task = with_data(task_of("mlp"), lambda site: meadow.ClientData(train=own[site.index]))
    executor = executor_of(task)
    order = order_of(task, MessageType.TRAIN, SGD)

    def losses() -> list[float]:
        (reply,) = executor.execute(order)
        return list(columns_in(reply.content.metric_records["metrics"])["loss"])

    before, again = losses(), losses()
    own[2][0].mul_(3.0)
    after = losses()
    assert before == again
    assert [one == other for one, other in zip(before, after, strict=True)].count(False) == 1
