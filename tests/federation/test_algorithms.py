"""Algorithms over gRPC: what travels beside the params, and what agents keep between rounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from meadow.simulations.run import simulate

from .processes import Federation, federation, kill_9, meadow, wait_until

pytestmark = pytest.mark.fleet

DIGITS = Path(__file__).parents[1] / "shared" / "digits"
CLIENTS = 2
SETTINGS = ("run.rounds=2", f"simulation.clients={CLIENTS}", "evaluation.every=0")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and two agents."""
    with federation(tmp_path_factory.mktemp("algorithms"), DIGITS, clients=CLIENTS) as running:
        yield running


def simulated(folder: Path, *settings: str) -> bytes:
    """Return the model that a simulation of the same run ends with."""
    simulate(DIGITS, overrides=[*SETTINGS, *settings], out=folder, executor="sequential")
    return (folder / "model.safetensors").read_bytes()


TREES = ("strategy.objective=multi:softprob", "strategy.tree_classes=10", "strategy.tree_depth=2")


OTHERS = {
    "fednova": (),
    "feddyn": (),
    "qfedavg": (),
    "afl": (),
    "fedlion": (),
    "fedper": ('strategy.private=["2.*"]',),
    "fedrep": ('strategy.private=["2.*"]',),
    "ditto": (),
    "ifca": ("strategy.clusters=2",),
    "xgb_bagging": TREES,
}
"""Those whose models no other test compares."""


@pytest.mark.parametrize("name", OTHERS)
def test_the_model_is_the_simulations(fleet: Federation, tmp_path: Path, name: str) -> None:
    """A real federation's bytes are those of the simulation, whatever the algorithm sends."""
    if name == "xgb_bagging":
        pytest.importorskip("xgboost")
    strategy = (f"strategy.name={name}", *OTHERS[name])
    run = fleet.submit(*SETTINGS, *strategy)
    summary = fleet.wait_for_end(run)
    assert summary["status"] == "finished", summary
    assert fleet.model(run) == simulated(tmp_path / "simulated", *strategy)


def test_personal_metrics_come_from_the_agents(fleet: Federation) -> None:
    """Private layers stay with the agents, which measure what they make of the common ones."""
    private = 'strategy.private=["2.*"]'
    run = fleet.submit(*SETTINGS, "strategy.name=fedper", private, "evaluation.every=2")
    assert fleet.wait_for_end(run)["status"] == "finished"
    found = fleet.rounds(run)[-1]["evaluate"]
    assert found["personal-accuracy"] > found["accuracy"]


def test_what_agents_keep_survives_them(fleet: Federation, tmp_path: Path) -> None:
    """Control variates are there again after an agent and its training process were killed."""
    settings = ("strategy.name=scaffold", "run.rounds=6")
    run = fleet.submit(*SETTINGS, *settings)
    fleet.wait_for_round(run, 2)
    for pid in wait_until(lambda: fleet.trainers(0), "a training process"):
        kill_9(pid)
    fleet.clients[1].kill()
    fleet.clients[1].start()
    assert fleet.wait_for_end(run)["status"] == "finished"
    assert fleet.model(run) == simulated(tmp_path / "simulated", *settings)


def test_a_run_asks_those_with_its_tags(fleet: Federation) -> None:
    """Of two agents the one with both tags trains; a tag that is given later lets a run begin."""
    asked = ("run.rounds=1", "run.min_clients=1", "evaluation.every=0", 'selection.tags=["a","b"]')
    admin = ("--dir", str(fleet.server_dir))
    meadow("site", "tag", "client-0", "a", *admin)
    run = fleet.submit(*asked)
    assert meadow("site", "tag", "client-1", "b", "a", *admin)["tags"] == "a b"
    assert fleet.wait_for_end(run)["status"] == "finished"
    assert [row["clients"] for row in fleet.rounds(run)] == [1]
    refused = meadow("site", "tag", "client-0", "No Tag", *admin, code=2)
    assert "is not a tag" in refused["stderr"]
