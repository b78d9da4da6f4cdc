"""A secure cohort in this process: real messages, a server that may lie, clients that may go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from flwr.app import (
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from meadow.errors import NOTHING_TO_EVALUATE
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.privacy.secagg.client.app import secure_app
from meadow.privacy.secagg.client.identity import simulated_identity
from meadow.privacy.secagg.server.grid import SecureAggregationGrid
from meadow.privacy.secagg.terms.terms import ANSWERS, IDENTITY, SecureTerms
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.rounds.broadcast import Broadcast

identify_process(run_id=1, node_id=0)

STEPS = ("train.secure", *ANSWERS)
KINDS = (IDENTITY, *STEPS)
TERMS = SecureTerms(value_bound=2.0, metrics=("accuracy", "loss"))

Alter = Callable[[Message], Message | None]
"""What becomes of a message on its way; None is that it is lost."""


def model(dtype: Any = np.float32) -> dict[str, np.ndarray[Any, Any]]:
    """Return params of several kinds."""
    random = np.random.default_rng(0)
    return {
        "weight": random.standard_normal((3, 4)).astype(dtype),
        "bias": random.standard_normal(4).astype(dtype),
        "steps": np.asarray(5, np.int64),
        "empty": np.zeros((0, 5), dtype),
    }


def trained(node: int, number: int, params: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a client makes of params, and what it reports: by client and round alone."""
    random = np.random.default_rng([node, number])
    new = {
        name: np.asarray(values + 2)
        if values.dtype.kind == "i"
        else np.asarray(values + random.uniform(-0.5, 0.5, values.shape), values.dtype)
        for name, values in params.items()
    }
    return new, {"num-examples": 10 * node, "loss": 0.5 * node, "accuracy": 1.0 / (node + number)}


def plain_app() -> ClientApp:
    """Return a client that is trained by `trained`; client 2 has nothing to evaluate."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        params = arrays_to_params(message.content["arrays"])
        number = int(message.content["config"]["server-round"])
        new, metrics = trained(context.node_id, number, params)
        content = {"arrays": params_to_arrays(new), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        if context.node_id == 2:
            return Message(Error(NOTHING_TO_EVALUATE, "nothing"), reply_to=message)
        _, metrics = trained(context.node_id, 0, {})
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


class Wire(SimulationGrid):
    """A grid on which messages are looked at, changed and lost."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[Message] = []
        self.heard: list[Message] = []
        self.on_way_out: Alter = lambda message: message
        self.on_way_back: Alter = lambda message: message

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        batch = [
            changed
            for message in messages
            if (
                changed := self.on_way_out(
                    Message(
                        RecordDict(dict(message.content.items())),
                        message.metadata.dst_node_id,
                        message.metadata.message_type,
                        group_id=message.metadata.group_id,
                    )
                )
            )
        ]
        self.asked += batch
        for reply in super().send_and_receive(batch, timeout=timeout):
            self.heard.append(reply)
            if (changed := self.on_way_back(reply)) is not None:
                yield changed


class Arena:
    """So many clients, with one app, behind a wire."""

    def __init__(self, clients: int, *, app: ClientApp | None = None, identify: Any = None) -> None:
        self.clients = SimulatedClients(clients, run_id=1, run_config={})
        self.app = secure_app(app or plain_app(), identify=identify or simulated_identity(7))
        self.wire = Wire(SequentialExecutor(self.app, self.clients), self.clients)
        self.told: list[tuple[str, Any]] = []
        self.grid = self.secured()

    def secured(self, terms: SecureTerms = TERMS) -> SecureAggregationGrid:
        """Return a secure grid over the wire."""
        return SecureAggregationGrid(
            self.wire, terms, emit=lambda kind, detail: self.told.append((kind, detail))
        )

    def instructions(
        self, number: int = 1, kind: str = "train", params: Any = None, nodes: Any = None
    ) -> Broadcast:
        """Return a round's instructions for everybody."""
        params = model() if params is None else params
        config = ConfigRecord({"server-round": number, "learning-rate": 0.1})
        content = RecordDict({"arrays": params_to_arrays(params), "config": config})
        nodes = list(self.wire.get_node_ids()) if nodes is None else nodes
        return Broadcast(content, kind, nodes, group_id=str(number))

    def round(self, number: int = 1, **other: Any) -> list[Message]:
        """Run a round and return its replies."""
        return list(self.grid.send_and_receive(self.instructions(number, **other)))


def combined(replies: Iterable[Message]) -> Message:
    """Return the one reply that is no error."""
    (reply,) = [reply for reply in replies if not reply.has_error()]
    return reply


def reasons(replies: Iterable[Message]) -> dict[int, str]:
    """Return the errors by client."""
    return {
        reply.metadata.src_node_id: str(reply.error.reason)
        for reply in replies
        if reply.has_error()
    }


def plain_mean(
    nodes: Iterable[int], number: int, params: Any
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return what FedAvg makes of the same updates, in float64."""
    updates = [trained(node, number, params) for node in nodes]
    total = sum(metrics["num-examples"] for _, metrics in updates)

    def mean(values: Any) -> Any:
        return (
            sum(
                metrics["num-examples"] * np.float64(value)
                for value, (_, metrics) in zip(values, updates, strict=True)
            )
            / total
        )

    means = {name: mean([new[name] for new, _ in updates]) for name in params}
    metrics = {name: mean([said[name] for _, said in updates]) for name in ("loss", "accuracy")}
    return means, {**metrics, "num-examples": total}


def require_mean(reply: Message, nodes: Iterable[int], number: int, params: Any) -> None:
    """Check a combined reply against FedAvg, within the fixed-point numbers' step."""
    nodes = list(nodes)
    means, metrics = plain_mean(nodes, number, params)
    got = arrays_to_params(reply.content["arrays"])
    step = TERMS.value_bound / 2**15 * len(nodes) / metrics["num-examples"]
    for name, values in params.items():
        assert got[name].dtype == values.dtype and got[name].shape == values.shape
        np.testing.assert_allclose(got[name], means[name], rtol=0, atol=step + 1e-6)
    said: MetricRecord = reply.content["metrics"]
    assert said["combined-clients"] == nodes
    assert said["num-examples"] == metrics["num-examples"]
    wide = step * TERMS.metrics_max / TERMS.value_bound
    assert abs(said["loss"] - metrics["loss"]) < wide
    assert abs(said["accuracy"] - metrics["accuracy"]) < wide
    assert set(said) == {"combined-clients", "num-examples", "loss", "accuracy"}
