"""A Flower Grid in memory, and clients for it that are plain functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.strategies.algorithms.algorithm import Update
from meadow.strategies.rounds.recorder import Checkpoint, RoundTable

identify_process(run_id=1, node_id=0)

Client = Callable[[Message], RecordDict | Error | None]


class MemoryGrid(Grid):
    """Answers messages at once, by calling `client`; None is a client that never answers."""

    def __init__(self, client: Client, nodes: Iterable[int], order: Any = None) -> None:
        self.client, self.nodes = client, list(nodes)
        self.order = order or (lambda replies: replies)
        self.sent: list[Message] = []
        self.timeouts: list[float | None] = []

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        self.timeouts.append(timeout)
        replies = []
        for message in messages:
            self.sent.append(message)
            answer = self.client(message)
            if answer is not None:
                replies.append(Message(answer, reply_to=message))
        return iter(self.order(replies))


class MemoryRecorder:
    """Keeps everything in memory; a checkpoint is copied, as a file would be."""

    def __init__(self) -> None:
        self.checkpoints: list[Checkpoint] = []
        self.tables: list[RoundTable] = []
        self.rows: list[dict[str, Any]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    def resume(self) -> Checkpoint | None:
        return self.checkpoints[-1] if self.checkpoints else None

    def commit(self, checkpoint: Checkpoint, row: Any, table: RoundTable) -> ArrayRecord:
        self.tables.append(table)
        self.checkpoints.append(checkpoint)
        self.rows.append(dict(row))
        params = {name: values.copy() for name, values in checkpoint.state.params.items()}
        return params_to_arrays(params)

    def event(self, kind: str, detail: Any) -> None:
        self.events.append((kind, dict(detail)))

    def heard(self, kind: str) -> list[dict[str, Any]]:
        return [detail for name, detail in self.events if name == kind]


def drift(message: Message) -> RecordDict:
    """A client whose training depends on (client, round) alone, whatever else happens."""
    client, number = message.metadata.dst_node_id, message.content["config"]["server-round"]
    generator = np.random.default_rng([client, number])
    metrics = {"num-examples": 10 * client, "loss": float(client), "accuracy": 1 / number}
    if message.metadata.message_type == MessageType.EVALUATE:
        return RecordDict({"metrics": MetricRecord(metrics)})
    params = arrays_to_params(message.content["arrays"])
    trained = {
        name: np.asarray(old * 0.9 + generator.standard_normal(old.shape), dtype=old.dtype)
        for name, old in params.items()
    }
    return RecordDict({"arrays": params_to_arrays(trained), "metrics": MetricRecord(metrics)})


def model(dtype: Any = np.float32) -> dict[str, np.ndarray[Any, Any]]:
    """A small model: a matrix, a vector, a scalar and a tensor without values."""
    generator = np.random.default_rng(0)
    return {
        "weight": generator.standard_normal((3, 4)).astype(dtype),
        "bias": generator.standard_normal(4).astype(dtype),
        "scale": np.asarray(generator.standard_normal(), dtype=dtype),
        "empty": np.zeros((0, 5), dtype=dtype),
    }


def bytes_of(params: Any) -> dict[str, bytes]:
    return {name: np.asarray(values).tobytes() for name, values in params.items()}


def update(client: int, weight: float, params: Any) -> Update:
    """An update over arrays in memory."""
    record = params_to_arrays({name: np.asarray(values) for name, values in params.items()})
    tensors = {name: array.tensor for name, array in record.items()}
    return Update(client=client, params=tensors, weight=weight)


@pytest.fixture(scope="session")
def kit() -> Any:
    """The grid, recorder, client and model above, by name."""

    class Kit:
        Grid = MemoryGrid
        Recorder = MemoryRecorder

    Kit.drift = staticmethod(drift)
    Kit.model = staticmethod(model)
    Kit.bytes_of = staticmethod(bytes_of)
    Kit.update = staticmethod(update)
    return Kit
