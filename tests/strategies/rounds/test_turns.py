"""Clients that take part with min-separation: whatever happens, nobody is drawn sooner or more often."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from meadow.config.load import make_config
from meadow.errors import ConfigError, QuorumError
from meadow.flower.messages import params_to_arrays
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan
from meadow.strategies.rounds.selection import KINDS, Selection


def turns(kit: Any, plan: RoundPlan, *, rounds: int, stop: int, clients: int) -> dict[int, Any]:
    """Run, interrupted after `stop` rounds, with a client that fails now and then."""
    asked: dict[int, set[int]] = defaultdict(set)

    def client(message: Message) -> Any:
        number = int(message.metadata.group_id)
        is_first = not asked[number]  # never all of them: no round is without a single update
        asked[number].add(message.metadata.dst_node_id)
        if is_first and (number + message.metadata.dst_node_id) % 3 == 0:
            return Error(code=1, reason="no luck")
        return kit.drift(message)

    recorder = kit.Recorder()
    for until in (stop, rounds):
        strategy = FederatedStrategy(fedavg(), plan, recorder=recorder)
        grid = kit.Grid(client, range(1, clients + 1))
        strategy.start(grid, params_to_arrays({"a": np.zeros(2)}), until)
    return asked


@given(
    kind=st.sampled_from(KINDS),
    apart=st.integers(1, 5),
    times=st.one_of(st.none(), st.integers(2, 4)),
    stop=st.integers(1, 7),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_nobody_is_drawn_too_soon(
    kit: Any, kind: Any, apart: int, times: int | None, stop: int, seed: int
) -> None:
    """Of any two rounds of a client the later is `separation` later, also over a resumption."""
    selection = Selection(kind=kind, separation=apart, participations_max=times)
    plan = RoundPlan(cohort=3, min_clients=1, seed=seed, selection=selection, evaluate_every=0)
    asked = turns(kit, plan, rounds=8, stop=stop, clients=15)
    rounds_of = defaultdict(list)
    for number in sorted(asked):
        assert len(asked[number]) == 3
        for client in asked[number]:
            rounds_of[client].append(number)
    for rounds in rounds_of.values():
        assert len(rounds) == 1 or np.diff(rounds).min() >= apart
        assert times is None or len(rounds) <= times


def test_a_round_waits_for_rested_clients(kit: Any) -> None:
    """Those who are connected and took part lately are not enough."""
    plan = RoundPlan(cohort=2, min_clients=2, selection=Selection(separation=3), evaluate_every=0)
    grid, wanted = kit.Grid(kit.drift, range(1, 5)), []

    def wait_for_nodes(count: int) -> None:
        wanted.append(count)
        grid.nodes.extend((5, 6))

    grid.wait_for_nodes = wait_for_nodes
    FederatedStrategy(fedavg(), plan).start(grid, params_to_arrays({"a": np.zeros(2)}), 3)
    assert wanted == [6]
    grid = kit.Grid(kit.drift, range(1, 5))
    grid.wait_for_nodes = lambda count: None
    with pytest.raises(QuorumError, match="round 3: 0 of 2 clients are connected and rested"):
        FederatedStrategy(fedavg(), plan).start(grid, params_to_arrays({"a": np.zeros(2)}), 3)


def test_without_turns_nothing_is_remembered(kit: Any) -> None:
    """The cohorts of a uniform selection are what they were, and checkpoints hold no clients."""
    plan, recorder = RoundPlan(cohort=2), kit.Recorder()
    start = params_to_arrays({"a": np.zeros(2)})
    FederatedStrategy(fedavg(), plan, recorder=recorder).start(
        kit.Grid(kit.drift, range(1, 9)), start, 2
    )
    assert recorder.checkpoints[-1].state.slots == {}
    by_turns = replace(plan, selection=Selection(separation=2))
    FederatedStrategy(fedavg(), by_turns, recorder=(kept := kit.Recorder())).start(
        kit.Grid(kit.drift, range(1, 9)), start, 2
    )
    assert list(kept.checkpoints[-1].state.slots) == ["clients"]


PRIVATE = {"enabled": True, "noise_multiplier": 1.0, "sampling": "fixed", "correlation": "banded"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"selection": {"min_separation": 0}}, "min_separation must be a whole number >= 1"),
        ({"selection": {"min_separation": 3}}, "run.cohort = 1.0 is a part of the clients"),
        (
            {
                "run": {"cohort": 4},
                "selection": {"min_separation": 5},
                "simulation": {"clients": 19},
            },
            "simulation.clients = 19 must be at least 20",
        ),
        (
            {
                "run": {"cohort": 4},
                "selection": {"participations_max": 2},
                "simulation": {"clients": 19},
            },
            "simulation.clients = 19 must be at least 20 for 10 rounds",
        ),
        (
            {
                "run": {"cohort": 4},
                "selection": {"min_separation": 2},
                "simulation": {"devices": {}},
            },
            "simulation.devices come and go",
        ),
        ({"dp": PRIVATE}, "selection.min_separation must be >= 2, the rounds"),
        ({"dp": {**PRIVATE, "sampling": "poisson"}}, 'sampling = "poisson" samples each client'),
        (
            {
                "dp": {**PRIVATE, "bands": 6},
                "selection": {"min_separation": 5},
                "run": {"cohort": 4},
            },
            "selection.min_separation must be >= 6, the rounds",
        ),
        (
            {
                "dp": {**PRIVATE, "clipping": "adaptive"},
                "selection": {"min_separation": 5},
                "run": {"cohort": 4},
            },
            'clipping = "adaptive" changes the scale of the noise',
        ),
    ],
)
def test_what_turns_do_not_go_with(values: dict[str, Any], says: str) -> None:
    """Each combination that breaks the promise is an error that names the key."""
    private = values.pop("dp", None)
    if private is not None:
        values = {**values, "privacy": {"differential_privacy": private}}
    with pytest.raises(ConfigError, match=says):
        make_config(values)


def test_there_are_enough_simulated_clients_unless_said() -> None:
    """Without simulation.clients there are as many as the turns need."""
    values = {"run": {"cohort": 40, "rounds": 9}, "selection": {"min_separation": 5}}
    assert make_config(values).simulation.clients == 200
