"""kill -9 of every process, at many points: the run finishes by itself, with the same model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .processes import Federation, federation, kill_9, meadow, wait_until

pytestmark = pytest.mark.fleet

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
ROUNDS = 10
SETTINGS = (
    f"run.rounds={ROUNDS}",
    "run.min_clients=3",
    "simulation.clients=3",
    "training.epochs=3",
)
POINTS = ((1, 0.0), (3, 0.02), (5, 0.05), (7, 0.09), (9, 0.04))
"""Kill when so many rounds are durable, so many seconds later: in training, upload, evaluation."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and three agents."""
    with federation(tmp_path_factory.mktemp("kill"), DIGITS, clients=3) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(fleet: Federation) -> bytes:
    """The model of a run that nothing happened to."""
    run = fleet.submit(*SETTINGS)
    assert fleet.wait_for_end(run)["status"] == "finished"
    return fleet.model(run)


def test_same_seed_same_model(fleet: Federation, undisturbed: bytes, tmp_path: Path) -> None:
    """The simulation of three clients gives the federation's bytes, and so does a second run."""
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    meadow("simulate", str(DIGITS), "--executor", "sequential", "--out", str(tmp_path), *options)
    assert (tmp_path / "model.safetensors").read_bytes() == undisturbed
    again = fleet.submit(*SETTINGS)
    assert fleet.wait_for_end(again)["status"] == "finished"
    assert fleet.model(again) == undisturbed


def kill_daemon(fleet: Federation, nth: int) -> None:
    """Kill the daemon and start it again."""
    fleet.server.kill()
    fleet.start_server()


def kill_worker(fleet: Federation, nth: int) -> None:
    """Kill the run worker; the daemon starts another."""
    for pid in wait_until(fleet.workers, "a run worker"):
        kill_9(pid)


def kill_agent(fleet: Federation, nth: int) -> None:
    """Kill one agent and start it again."""
    client = fleet.clients[nth % 3]
    client.kill()
    client.start()


def kill_trainer(fleet: Federation, nth: int) -> None:
    """Kill a training process; its agent starts another."""
    for pid in wait_until(lambda: fleet.trainers(nth % 3), "a training process"):
        kill_9(pid)


@pytest.mark.parametrize("kill", [kill_daemon, kill_worker, kill_agent, kill_trainer])
def test_run_survives(
    fleet: Federation, undisturbed: bytes, kill: Callable[[Federation, int], None]
) -> None:
    """A run that is hit again and again ends with the bytes of one that is not."""
    run = fleet.submit(*SETTINGS)
    for nth, (rounds, delay_s) in enumerate(POINTS):
        fleet.wait_for_round(run, rounds)
        time.sleep(delay_s)
        kill(fleet, nth)
    summary = fleet.wait_for_end(run)
    assert summary["status"] == "finished", summary
    rows = fleet.rounds(run)
    assert [row["round"] for row in rows] == list(range(1, ROUNDS + 1))
    assert all(row["clients"] == 3 and row["failures"] == 0 for row in rows), rows
    assert fleet.model(run) == undisturbed


def test_everything_at_once(fleet: Federation, undisturbed: bytes) -> None:
    """All processes die together in the middle of a run, as in a power cut."""
    run = fleet.submit(*SETTINGS)
    fleet.wait_for_round(run, 4)
    for process in [fleet.server, *fleet.clients]:
        process.kill()
    fleet.start_server()
    for client in fleet.clients:
        client.start()
    assert fleet.wait_for_end(run)["status"] == "finished"
    assert fleet.model(run) == undisturbed
