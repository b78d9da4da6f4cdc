"""Clients chosen by tags: who is drawn, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord

from meadow.config.load import make_config
from meadow.errors import ConfigError
from meadow.flower.messages import identify_process, params_to_arrays
from meadow.simulations.grids.simulation_grid import SimulationGrid
from meadow.simulations.population.clients import SimulatedClients
from meadow.simulations.population.tags import Tagged, tagged_of
from meadow.strategies.algorithms.fedavg import fedavg
from meadow.strategies.rounds.adapter import FederatedStrategy
from meadow.strategies.rounds.plan import RoundPlan
from meadow.strategies.rounds.selection import Selection

identify_process(run_id=1, node_id=0)

GPU: dict[str, Any] = {"selection": {"tags": ["gpu"]}}


def config_of(share: str = "gpu=0.3", **selection: Any) -> Any:
    """Return a configuration of 1,000 clients of which a share has a tag."""
    values = {"simulation": {"clients": 1000, "tags": [share]}, **GPU}
    return make_config({**values, "selection": {**GPU["selection"], **selection}})


def grid_of(tagged: Tagged | None) -> SimulationGrid:
    """Return a grid whose clients nobody asks anything."""
    clients = SimulatedClients(1000, run_id=1, run_config={})
    return SimulationGrid(None, clients, tagged=tagged)  # type: ignore[arg-type]


def test_a_grid_has_the_tagged_clients_alone() -> None:
    """About the share of all clients, the same ones at every seed-equal start."""
    tagged = tagged_of(config_of())
    found = grid_of(tagged).get_node_ids()
    assert 240 < len(found) < 360
    assert list(found) == list(grid_of(tagged_of(config_of())).get_node_ids())
    assert grid_of(tagged).tags == ("gpu",)


def test_a_clients_tags_do_not_depend_on_how_many_there_are() -> None:
    """Client 7 has a tag or not, whoever else is there."""
    tagged = Tagged(shares={"gpu": 0.5, "eu": 0.5}, seed=3)
    every = tagged.has(np.arange(1, 101))
    alone = [bool(tagged.has(np.array([id_]))[0]) for id_ in range(1, 101)]
    assert every.tolist() == alone and 10 < sum(alone) < 45


def test_cohorts_are_drawn_among_them() -> None:
    """Every round's cohort has the tag, and the rounds' cohorts differ."""
    tagged = tagged_of(config_of())
    assert tagged is not None
    plan = RoundPlan(cohort=10, seed=1, selection=Selection(tags=("gpu",)))
    strategy, drawn = FederatedStrategy(fedavg(), plan), set()
    arrays = params_to_arrays({"w": np.zeros(2, np.float32)})
    for number in (1, 2, 3):
        sent = strategy.configure_train(number, arrays, ConfigRecord(), grid_of(tagged))
        assert tagged.has(np.array(sent.clients)).all() and len(sent.clients) == 10
        drawn.add(tuple(sent.clients))
    assert len(drawn) == 3


@pytest.mark.parametrize(
    ("share", "said"),
    [
        ("eu=0.3", "asks for 'gpu'"),
        ("gpu", "simulation.tags must be a tag and the share"),
        ("gpu=2", "simulation.tags must be a tag and the share"),
        ("gpu=0.0001", "simulated clients have the tags"),
    ],
)
def test_what_a_simulation_cannot_know_is_refused(share: str, said: str) -> None:
    """A tag that no client has, and a share that is none."""
    with pytest.raises(ConfigError, match=said):
        tagged_of(config_of(share))


def test_a_grid_without_tags_is_refused() -> None:
    """Nobody is drawn as if they had a tag that the grid knows nothing of."""
    plan = RoundPlan(cohort=10, seed=1, selection=Selection(tags=("gpu",)))
    with pytest.raises(ConfigError, match=r"selection\.tags asks for gpu"):
        FederatedStrategy(fedavg(), plan).start(grid_of(None), ArrayRecord())
