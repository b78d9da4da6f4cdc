"""Strategies on a secure grid: they work unchanged, and what would show single updates is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg, FedProx

from meadow.errors import ConfigError, QuorumError, RunError
from meadow.flower.messages import arrays_to_params, params_to_arrays
from meadow.privacy.secagg.terms.terms import IDENTITY, SecureTerms
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan

from .arena import Arena, model, plain_app, reasons

PLAN = RoundPlan(cohort=1.0, min_clients=3, deadline_s=60.0, seed=1)


FLOATS = {name: values for name, values in model().items() if values.dtype.kind == "f"}


def plain_result(clients: int, algorithm: Any, rounds: int, params: Any) -> Any:
    """Return what the same clients' updates give without secure aggregation."""
    from meadow.simulations.executors.sequential import SequentialExecutor
    from meadow.simulations.grids.simulation_grid import SimulationGrid
    from meadow.simulations.population.clients import SimulatedClients

    population = SimulatedClients(clients, run_id=1, run_config={})
    grid = SimulationGrid(SequentialExecutor(plain_app(), population), population)
    strategy = FederatedStrategy(algorithm, PLAN)
    return strategy.start(grid, params_to_arrays(params), num_rounds=rounds)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "yogi"])
def test_linear_strategies_work_unchanged(optimizer: str) -> None:
    """Three rounds end where they would in the clear, within rounding."""
    algorithm = fedavg(server_optimizer=optimizer)  # type: ignore[arg-type]
    result = FederatedStrategy(algorithm, PLAN).start(
        Arena(5).grid, params_to_arrays(model()), num_rounds=3
    )
    expected = plain_result(5, algorithm, 3, model())
    plain = arrays_to_params(expected.arrays)
    for name, values in arrays_to_params(result.arrays).items():
        np.testing.assert_allclose(values, plain[name], rtol=0, atol=3e-3)
    for number in (1, 2, 3):
        for rows in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
            said, clear = getattr(result, rows)[number], getattr(expected, rows)[number]
            assert said["loss"] == pytest.approx(clear["loss"], abs=0.01)


@pytest.mark.parametrize("kind", [FedAvg, FedProx])
def test_flowers_own_strategies(kind: Any) -> None:
    """They average the one reply that stands for everybody."""
    options = {"proximal_mu": 0.1} if kind is FedProx else {}
    strategy = kind(min_train_nodes=2, fraction_evaluate=0.0, **options)
    arena = Arena(4)
    result = strategy.start(arena.grid, params_to_arrays(FLOATS), num_rounds=2)
    got = arrays_to_params(result.arrays)
    plain = arrays_to_params(plain_result(4, fedavg(), 2, FLOATS).arrays)
    for name, values in got.items():
        np.testing.assert_allclose(values, plain[name], rtol=0, atol=1e-3)


def test_a_strategy_that_needs_single_updates_is_refused() -> None:
    """Before anything is sent."""
    from dataclasses import replace

    strategy = FederatedStrategy(replace(fedavg(), linear=False), PLAN)
    with pytest.raises(ConfigError, match="needs every single update"):
        strategy.start(Arena(3).grid, params_to_arrays(model()), num_rounds=1)


def test_a_round_without_a_sum_fails() -> None:
    """The run ends with a sentence that says why."""
    arena = Arena(5)
    arena.wire.on_way_back = lambda message: (
        message
        if message.metadata.message_type == IDENTITY or message.metadata.src_node_id > 2
        else None  # two of five say who they are, and then nothing
    )
    with pytest.raises(QuorumError, match="no secure sum"):
        FederatedStrategy(fedavg(), PLAN).start(arena.grid, params_to_arrays(model()), num_rounds=1)


def test_updates_are_not_pushed() -> None:
    """What is pushed comes back one by one; other messages pass."""
    arena = Arena(3)
    with pytest.raises(RunError, match="single updates"):
        arena.grid.push_messages(arena.instructions())
    with pytest.raises(RunError, match="single updates"):
        arena.grid.push_messages(arena.instructions(kind="evaluate.mine"))
    query = Message(RecordDict({"secure": ConfigRecord({})}), 1, "query.secure_identity")
    ids = arena.grid.push_messages([query])
    (reply,) = arena.grid.pull_messages(ids)
    assert len(reply.content["introduction"]["key"]) == 32


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (lambda arena: [arena.instructions()[0], arena.instructions()[0]], "only one instruction"),
        (lambda arena: [arena.instructions(1)[0], arena.instructions(2)[1]], "same instruction"),
        (
            lambda arena: [arena.instructions()[0], arena.instructions(kind="evaluate")[1]],
            "cannot be summed",
        ),
        (lambda arena: list(arena.instructions(kind="train.mine")), "cannot be summed"),
    ],
    ids=["twice", "different", "mixed", "other action"],
)
def test_batches_that_are_no_sum(batch: Any, says: str) -> None:
    """A sum is over answers to one question."""
    arena = Arena(3)
    with pytest.raises(RunError, match=says):
        arena.grid.send_and_receive(batch(arena))
    assert arena.wire.asked == []


def test_what_the_inner_grid_can_do() -> None:
    """Traffic, stopping and waiting are the inner grid's; nothing is sent for nobody."""
    arena = Arena(3)
    arena.round()
    assert arena.grid.bytes_sent == arena.wire.bytes_sent > 0
    assert arena.grid.is_stopping() is False
    assert list(arena.grid.send_and_receive([])) == []
    assert list(arena.grid.get_node_ids()) == [1, 2, 3]


def test_terms_that_are_not_safe_say_so() -> None:
    """For this cohort: the error is every client's."""
    arena = Arena(5)
    arena.grid = arena.secured(SecureTerms(weight_max=1 << 20))
    assert "could overflow" in reasons(arena.round())[1]
