"""Clients with params of their own: what stays with them, and what it is good for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import nn

import meadow
from meadow.errors import ConfigError
from meadow.flower.messages import arrays_to_params, identify_process, params_to_arrays
from meadow.simulations.executors.sequential import SequentialExecutor
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.strategies.algorithms.algorithm import Algorithm
from meadow.strategies.algorithms.ditto import ditto
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.algorithms.fedbn import fedbn
from meadow.strategies.algorithms.fedper import fedper
from meadow.strategies.algorithms.fedrep import fedrep
from meadow.strategies.algorithms.ifca import ifca
from meadow.strategies.rounds.adapter import FederatedStrategy, RunResult
from meadow.strategies.rounds.plan import RoundPlan
from meadow.training.module_params import build_module, params_of_module

identify_process(run_id=1, node_id=0)

CLIENTS = 4
SAMPLES = 60
TRUTH = torch.randn(8, 3, generator=torch.Generator().manual_seed(9))


def network() -> nn.Module:
    layers = {
        "body": nn.Linear(8, 12, bias=False),
        "norm": nn.BatchNorm1d(12),
        "relu": nn.ReLU(),
        "head": nn.Linear(12, 3),
    }
    return nn.Sequential(OrderedDict(layers))


def samples(site: meadow.Site, kind: str) -> meadow.ClientData:
    """Inputs and labels of one rule, which a site sees shifted ("feature") or renamed ("label")."""
    generator = torch.Generator().manual_seed(site.index)
    inputs = torch.randn(SAMPLES, 8, generator=generator)
    targets = (inputs @ TRUTH).argmax(1)
    if kind == "feature":
        inputs = inputs * (1 + site.index) + 3 * site.index
    if kind == "label":
        targets = (targets + site.index) % 3
    if kind == "groups":
        targets = (targets + site.index % 2) % 3
    half = SAMPLES // 2
    return meadow.ClientData(
        train=(inputs[:half], targets[:half]), test=(inputs[half:], targets[half:])
    )


def task_of(kind: str) -> meadow.Task:
    return meadow.Task(
        model=network,
        loss=lambda out, want: nn.functional.cross_entropy(out, want, reduction="none"),
        metrics={"accuracy": lambda out, want: (out.argmax(1) == want).float()},
        client_data=lambda site: samples(site, kind),
    )


class Federation:
    """Simulated clients, and every message that they were sent or answered with."""

    def __init__(self, kind: str) -> None:
        self.task = task_of(kind)
        self.clients = SimulatedClients(CLIENTS, run_id=1, run_config={})
        self.heard: list[Message] = []
        app = meadow.client_app(self.task, device="cpu")

        def listening(message: Message, context: Context) -> Message:
            reply = app(message, context)
            self.heard += [message, reply]
            return reply

        self.grid = SimulationGrid(SequentialExecutor(listening, self.clients), self.clients)  # type: ignore[arg-type]

    def run(self, algorithm: Algorithm, rounds: int = 15, **evaluation: Any) -> RunResult:
        config = {"batch-size": 10, "learning-rate": 0.1, "seed": 5}
        plan = RoundPlan(seed=1, evaluate_every=rounds)
        initial = params_to_arrays(params_of_module(build_module(self.task, 5)))
        return FederatedStrategy(algorithm, plan).start(
            self.grid,
            initial,
            rounds,
            train_config=ConfigRecord(config),  # type: ignore[arg-type]
            evaluate_config=ConfigRecord({**config, **evaluation}),
        )

    def state_of(self, client: int) -> RecordDict:
        return self.clients.context_of(client).state


def last(result: RunResult) -> dict[str, Any]:
    return dict(max(result.evaluate_metrics_clientapp.items())[1])


PRIVATE: dict[str, tuple[Callable[[], Algorithm], str]] = {
    "fedper": (lambda: fedper(private=["head.*"]), "head."),
    "fedrep": (lambda: fedrep(private=["head.*"]), "head."),
    "fedbn": (fedbn, "norm."),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_private_tensors_never_leave_the_client(name: str) -> None:
    """They are in no instruction and no reply, and clients' differ from each other."""
    build, private = PRIVATE[name]
    federation = Federation("label")
    result = federation.run(build(), rounds=2)
    seen = {
        tensor
        for message in federation.heard
        for record in message.content.array_records.values()
        for tensor in record
    }
    assert seen and not any(tensor.startswith(private) for tensor in seen)
    told = {
        record["algorithm"]
        for message in federation.heard
        for record in message.content.config_records.values()
        if "algorithm" in record
    }
    assert told == {name}  # what a client says of it has the name that the user chose
    kept = [
        arrays_to_params(federation.state_of(client).array_records["personal"]) for client in (1, 2)
    ]
    assert all(tensor.startswith(private) for tensor in kept[0])
    assert kept[0].keys() | seen == set(result.arrays)
    assert any(not np.array_equal(kept[0][tensor], kept[1][tensor]) for tensor in kept[0])
    began = params_of_module(build_module(federation.task, 5))
    for tensor in kept[0]:  # the server's own stay as they began
        assert np.array_equal(result.arrays[tensor].numpy(), began[tensor])


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (lambda: fedper(private=["head.*"]), "label"),
        (lambda: fedrep(private=["head.*"], head_epochs=2), "label"),
        (fedbn, "feature"),
        (lambda: ditto(ditto_lambda=0.1), "feature"),
        (lambda: ditto(ditto_lambda=0.1), "label"),
        (lambda: ifca(seed=1), "groups"),
    ],
    ids=["fedper", "fedrep", "fedbn", "ditto-feature", "ditto-label", "ifca"],
)
def test_own_params_beat_common_ones_where_data_differ(
    build: Callable[[], Algorithm], kind: str
) -> None:
    """On what each paper is about, clients' own params beat what FedAvg gives them all."""
    common = last(Federation(kind).run(fedavg()))
    own = last(Federation(kind).run(build()))
    assert own["personal-accuracy"] > common["accuracy"] + 0.05, (own, common)
    assert {"loss", "accuracy", "personal-loss", "personal-accuracy"} <= own.keys()


def test_ifca_finds_the_groups() -> None:
    """Clients of one kind choose one cluster, and those of the other kind the other."""
    federation = Federation("groups")
    federation.run(ifca(seed=1))
    chosen: dict[int, float] = {}
    for message in federation.heard:
        for record in message.content.metric_records.values():
            if "cluster" in record:
                chosen[message.metadata.src_node_id] = float(str(record["cluster"]))
    assert chosen[1] == chosen[3] != chosen[2] == chosen[4]


def test_tuning_measures_and_keeps_nothing() -> None:
    """Tuned to its own data a client does better; the common params and the state stay."""
    plain, tuned = Federation("label"), Federation("label")
    common, own = plain.run(fedavg()), tuned.run(fedavg(), **{"tuning-epochs": 5})
    assert last(own)["accuracy"] == last(common)["accuracy"]
    assert last(own)["personal-accuracy"] > last(own)["accuracy"] + 0.05
    assert not tuned.state_of(1)
    for name, array in common.arrays.items():
        assert np.array_equal(array.numpy(), own.arrays[name].numpy())


def test_ditto_trains_the_common_params_as_fedavg_does() -> None:
    """What is the client's own deltas nothing for the others."""
    common, own = Federation("feature").run(fedavg(), 3), Federation("feature").run(ditto(), 3)
    for name, array in common.arrays.items():
        assert np.array_equal(array.numpy(), own.arrays[name].numpy())


def test_ditto_by_hand() -> None:
    """Two rounds of one full-batch step: v <- v - rate (gradient at v + lambda (v - w))."""
    optimum, rate, pull = torch.tensor([1.0, 2.0, 3.0]), 0.1, 0.5
    app = meadow.client_app(point_task(optimum), device="cpu")
    context = context_of_one()
    own = None
    for at in (torch.zeros(3), torch.tensor([0.5, -1.0, 4.0])):
        config = {"algorithm": "ditto", "ditto-lambda": pull, "learning-rate": rate}
        reply = app(question({"at": at.numpy()}, config), context)
        own = at if own is None else own
        own = own - rate * ((own - optimum) + pull * (own - at))
        kept = arrays_to_params(context.state.array_records["personal"])["at"]
        np.testing.assert_allclose(kept, own, rtol=1e-6)
        sent = arrays_to_params(reply.content.array_records["arrays"])["at"]
        np.testing.assert_allclose(sent, at - rate * (at - optimum), rtol=1e-6)


def test_ifca_by_hand() -> None:
    """The nearer cluster is trained and counted, the other comes back as it was."""
    optimum = torch.tensor([1.0, 2.0, 3.0])
    app = meadow.client_app(point_task(optimum), device="cpu")
    zero = np.zeros((), np.float64)
    near, far = np.array([1, 1, 1], np.float32), np.array([9, 9, 9], np.float32)
    wire = {"cluster-0/at": far, "cluster-1/at": near}
    wire |= {"members/cluster-0": zero, "members/cluster-1": zero}
    reply = app(question(wire, {"algorithm": "ifca", "learning-rate": 0.1}), context_of_one())
    found = arrays_to_params(reply.content.array_records["arrays"])
    np.testing.assert_allclose(found["cluster-1/at"], near - 0.1 * (near - optimum.numpy()))
    assert np.array_equal(found["cluster-0/at"], far)
    assert (found["members/cluster-0"], found["members/cluster-1"]) == (0, 1)


class Point(nn.Module):
    """Three params, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.at.expand(len(inputs), -1)


def point_task(optimum: torch.Tensor) -> meadow.Task:
    data = (torch.zeros(2, 1), optimum.expand(2, -1))
    return meadow.Task(
        model=Point,
        loss=lambda out, want: (out - want).square().sum(1) / 2,
        client_data=lambda site: meadow.ClientData(train=data, test=data),
    )


def context_of_one() -> Context:
    config = {"site-index": 0, "site-count": 1}
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})  # type: ignore[arg-type]


def question(params: dict[str, Any], config: dict[str, Any]) -> Message:
    content = {"arrays": params_to_arrays(params), "config": ConfigRecord(config)}
    return Message(RecordDict(content), 1, "train")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: fedper(), "private must name"),
        (lambda: fedper(private=["tail.*"]), "'tail.\\*' matches no tensor"),
        (lambda: fedper(private=["*"]), "every tensor is private"),
        (lambda: ditto(ditto_lambda=-1), "ditto_lambda must be >= 0, got -1"),
        (lambda: fedrep(private=["head.*"], head_epochs=0), "head_epochs must be a whole number"),
        (lambda: ifca(clusters=1), "clusters must be a whole number >= 2"),
        (lambda: ifca(cluster_spread=0), "cluster_spread must be > 0"),
    ],
)
def test_what_cannot_be_is_named(build: Callable[[], Algorithm], sentence: str) -> None:
    """A bad argument, or a pattern that does not fit the model, ends the run before it starts."""
    with pytest.raises(ConfigError, match=sentence):
        Federation("label").run(build(), rounds=1)
