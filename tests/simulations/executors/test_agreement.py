"""All executors train the same model: the sequential one to the bit, others within rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import meadow
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.simulations.executors.contract import EventSink
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.executors.vectorized.executor import VectorizedExecutor
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.algorithms.combined import columns_in
from meadow.strategies.rounds.broadcast import Broadcast
from meadow.training.module_params import build_module, params_of_module

identify_process(run_id=1, node_id=0)

CLIENTS = 7
SIZES = (23, 5, 14, 10, 14, 30, 6)
"""Unequal: with batches of 10 some have one step, some three, with a smaller last batch."""


class Tied(nn.Module):
    """Two names for one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.out = nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(inputs.flatten(1)))
        result: torch.Tensor = self.out(torch.tanh(self.second(hidden)))
        return result


class Frozen(nn.Module):
    """A layer that is not trained, and a buffer that is not sent."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(16, 8).requires_grad_(False)
        self.head = nn.Linear(8, 4)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.features(inputs.flatten(1)) * self.scale)
        return result


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)
    )


def normed() -> nn.Module:
    """No bias before a norm: its gradient is zero, and Adam would make steps of its rounding."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 8, bias=False),
        nn.BatchNorm1d(8),
        nn.Linear(8, 4),
    )


def dropping() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Dropout2d(0.3),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(8, 4),
    )


MODELS = {
    "mlp": mlp,
    "convolutional": convolutional,
    "batch norm": normed,
    "dropout": dropping,
    "tied": Tied,
    "frozen": Frozen,
}

SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"learning-rate": 0.1},
    "two epochs": {"learning-rate": 0.1, "epochs": 2},
    "momentum": {"learning-rate": 0.05, "momentum": 0.9, "weight-decay": 0.01, "epochs": 2},
    "adam": {"optimizer": "adam", "learning-rate": 0.01},
    "adamw": {"optimizer": "adamw", "learning-rate": 0.01, "weight-decay": 0.1},
    "fedprox": {"learning-rate": 0.1, "proximal-mu": 0.5, "epochs": 2},
    "clipped": {"learning-rate": 0.1, "gradient-clip-norm": 0.2},
}

RTOL, ATOL = 2e-4, 2e-5
"""How far params may be apart after a round; they are about 0.3 in size and move by about 0.1.
Adam divides by the root of small squares, which magnifies what rounding does to them."""


class Made(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A Dataset with code of its own."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[place], self.targets[place]


GENERATOR = torch.Generator().manual_seed(3)
INPUTS = torch.randn(sum(SIZES), 1, 4, 4, generator=GENERATOR)
TARGETS = torch.randint(0, 4, (sum(SIZES),), generator=GENERATOR)
POOL = TensorDataset(INPUTS, TARGETS)


def share(index: int) -> range:
    start = sum(SIZES[:index])
    return range(start, start + SIZES[index])


def load(site: meadow.Site, kind: str) -> meadow.ClientData:
    rows = list(share(site.index))
    test = (INPUTS[rows][:3], TARGETS[rows][:3]) if site.index % 3 else None
    if kind == "subset":
        return meadow.ClientData(train=Subset(POOL, rows), test=test)
    if kind == "dataset":
        return meadow.ClientData(train=Made(INPUTS[rows], TARGETS[rows]), test=test)
    return meadow.ClientData(train=(INPUTS[rows], TARGETS[rows]), test=test)


def task_of(model: str, *, data: str = "tensors") -> meadow.Task:
    return meadow.Task(
        model=MODELS[model],
        loss=lambda out, want: nn.functional.cross_entropy(out, want, reduction="none"),
        metrics={"accuracy": lambda out, want: (out.argmax(1) == want).float()},
        client_data=lambda site: load(site, data),
    )


def order_of(task: meadow.Task, kind: str, settings: dict[str, Any]) -> Broadcast:
    params = params_of_module(build_module(task, 5))
    config = ConfigRecord({"batch-size": 10, "seed": 5, "server-round": 2, **settings})
    content = RecordDict({"arrays": params_to_arrays(params), "config": config})
    return Broadcast(content, kind, tuple(range(1, CLIENTS + 1)), group_id="2", id_prefix="m-")


def executors(task: meadow.Task, *, combine: bool) -> tuple[SequentialExecutor, VectorizedExecutor]:
    clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
    told: list[Any] = []

    def tell(kind: str, detail: Any) -> None:
        told.append(detail)
        raise AssertionError(f"{kind}: {detail}")  # nothing may fall back silently

    sequential = SequentialExecutor(meadow.client_app(task, device="cpu"), clients)
    return sequential, VectorizedExecutor(
        task,
        clients,
        device="cpu",
        combine=combine,
        other=sequential,
        sink=EventSink(event=tell),
    )


def train(executor: Any, order: Broadcast) -> dict[int, Message]:
    replies = {reply.metadata.src_node_id: reply for reply in executor.execute(order)}
    for reply in replies.values():
        assert not reply.has_error(), reply.error.reason
    return replies


def assert_alike(found: Message, expected: Message) -> None:
    """Compare two clients' replies: params within rounding, metrics too."""
    theirs = arrays_to_params(expected.content.array_records["arrays"])
    ours = arrays_to_params(found.content.array_records["arrays"])
    assert list(ours) == list(theirs)
    for name, values in theirs.items():
        assert ours[name].dtype == values.dtype and ours[name].shape == values.shape
        np.testing.assert_allclose(ours[name], values, rtol=RTOL, atol=ATOL, err_msg=name)
    metrics = dict(expected.content.metric_records["metrics"])
    for name, value in metrics.items():
        assert found.content.metric_records["metrics"][name] == pytest.approx(value, rel=1e-4)


def assert_is_mean(found: Message, singles: dict[int, Message]) -> None:
    """Compare a reply that stands for all with the mean of all, weighted by examples."""
    weights = [float(SIZES[client - 1]) for client in singles]
    params = [arrays_to_params(r.content.array_records["arrays"]) for r in singles.values()]
    for name, values in arrays_to_params(found.content.array_records["arrays"]).items():
        mean = np.average([each[name].astype(np.float64) for each in params], 0, weights)
        if values.dtype.kind == "i":
            mean = np.rint(mean)
        np.testing.assert_allclose(values, mean, rtol=RTOL, atol=ATOL, err_msg=name)


CASES = [(model, "sgd") for model in MODELS] + [("mlp", name) for name in SETTINGS]
CASES += [("batch norm", name) for name in ("two epochs", "momentum", "adam", "fedprox")]
CASES += [("dropout", name) for name in ("two epochs", "momentum", "adam", "fedprox")]


@pytest.mark.parametrize(("model", "settings"), sorted(set(CASES)))
def test_every_client_trains_alike(model: str, settings: str) -> None:
    """Client by client, the vectorized executor's params are the sequential one's."""
    task = task_of(model)
    order = order_of(task, MessageType.TRAIN, SETTINGS[settings])
    sequential, vectorized = executors(task, combine=False)
    expected, found = train(sequential, order), train(vectorized, order)
    assert set(found) == set(expected) == set(range(1, CLIENTS + 1))
    for client, reply in expected.items():
        assert_alike(found[client], reply)


@pytest.mark.parametrize("kind", ["subset", "dataset"])
def test_data_of_every_kind_train_alike(kind: str) -> None:
    """Rows of a shared tensor, and a Dataset that makes its samples, over two epochs."""
    task = task_of("mlp", data=kind)
    order = order_of(task, MessageType.TRAIN, SETTINGS["two epochs"])
    sequential, vectorized = executors(task, combine=False)
    expected, found = train(sequential, order), train(vectorized, order)
    for client, reply in expected.items():
        assert_alike(found[client], reply)


@pytest.mark.parametrize("model", ["mlp", "batch norm", "frozen", "tied"])
def test_the_combined_reply_is_the_mean(model: str) -> None:
    """One reply stands for all: the mean of the params by examples, and everybody's metrics."""
    task = task_of(model)
    order = order_of(task, MessageType.TRAIN, SETTINGS["two epochs"])
    sequential, _ = executors(task, combine=False)
    _, vectorized = executors(task, combine=True)
    singles = train(sequential, order)
    (combined,) = train(vectorized, order).values()
    assert_is_mean(combined, singles)
    metrics = combined.content.metric_records["metrics"]
    assert sorted(metrics["combined-clients"]) == list(range(1, CLIENTS + 1))  # type: ignore[arg-type]
    assert metrics["num-examples"] == sum(SIZES)
    for client, loss in zip(metrics["combined-clients"], columns_in(metrics)["loss"], strict=True):  # type: ignore[arg-type]
        alone = singles[client].content.metric_records["metrics"]["loss"]
        assert loss == pytest.approx(alone, rel=1e-4)


def test_accumulated_steps_train_alike() -> None:
    """Two batches a step, the last of an epoch perhaps alone."""
    task = task_of("mlp")
    settings = {"learning-rate": 0.1, "batch-size": 4, "accumulation-steps": 2, "epochs": 2}
    order = order_of(task, MessageType.TRAIN, settings)
    sequential, vectorized = executors(task, combine=False)
    expected, found = train(sequential, order), train(vectorized, order)
    for client, reply in expected.items():
        assert_alike(found[client], reply)


@pytest.mark.parametrize("combine", [False, True])
def test_evaluation_is_alike(combine: bool) -> None:
    """Clients without test data say so; the others measure what they would alone."""
    task = task_of("batch norm")
    order = order_of(task, MessageType.EVALUATE, {})
    sequential, vectorized = executors(task, combine=combine)
    expected = {r.metadata.src_node_id: r for r in sequential.execute(order)}
    replies = list(vectorized.execute(order))
    for reply in (reply for reply in replies if reply.has_error()):
        assert reply.error.code == expected[reply.metadata.src_node_id].error.code
    for reply in (reply for reply in replies if reply.has_content()):
        metrics = reply.content.metric_records["metrics"]
        for place, client in enumerate(metrics["combined-clients"]):  # type: ignore[arg-type]
            alone = expected[client].content.metric_records["metrics"]
            assert columns_in(metrics)["loss"][place] == pytest.approx(alone["loss"], rel=1e-5)
            assert columns_in(metrics)["accuracy"][place] == alone["accuracy"]


@pytest.mark.parametrize("model", ["mlp", "dropout", "batch norm"])
def test_the_same_round_twice_is_bit_equal(model: str) -> None:
    """Nothing depends on what was run before."""
    task = task_of(model)
    order = order_of(task, MessageType.TRAIN, SETTINGS["momentum"])
    _, vectorized = executors(task, combine=True)
    first, second = (next(iter(train(vectorized, order).values())) for _ in range(2))
    params = [arrays_to_params(r.content.array_records["arrays"]) for r in (first, second)]
    for name, values in params[0].items():
        assert values.tobytes() == params[1][name].tobytes()
