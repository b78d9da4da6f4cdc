"""Asynchronous rounds over gRPC: the simulation's model, kill -9, and an agent that is stuck."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from meadow.simulations.run import simulate

from .processes import Federation, federation, kill_9, wait_until

pytestmark = pytest.mark.fleet

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
CLIENTS = 3
SETTINGS = (
    "run.rounds=6",
    f"run.min_clients={CLIENTS}",
    f"simulation.clients={CLIENTS}",
    "rounds.kind=fedbuff",
    "rounds.buffer_size=2",
)
ONE_BY_ONE = (*SETTINGS, "rounds.concurrency=1")
"""Who is asked, and for what, follows from the seed if one client works at a time."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and three agents."""
    with federation(tmp_path_factory.mktemp("asynchronous"), DIGITS, clients=CLIENTS) as running:
        yield running


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of a simulation in which one client works at a time."""
    folder = tmp_path_factory.mktemp("simulated") / "run"
    simulate(DIGITS, overrides=ONE_BY_ONE, out=folder, executor="sequential")
    return (folder / "model.safetensors").read_bytes()


def test_nothing_is_lost_or_counted_twice(fleet: Federation, simulated: bytes) -> None:
    """Its worker and its daemon killed, a run goes on with the very updates that it had.

    Where one client works at a time, a real federation's bytes are those of the simulation.
    """
    run = fleet.submit(*ONE_BY_ONE)
    fleet.wait_for_round(run, 1)
    for pid in wait_until(fleet.workers, "a run worker"):
        kill_9(pid)
    fleet.wait_for_round(run, 3)
    fleet.server.kill()
    fleet.start_server()
    assert fleet.wait_for_end(run)["status"] == "finished"
    assert fleet.model(run) == simulated
    rows = fleet.rounds(run)
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[-1]["bytes_received"] > 0 and rows[-1]["bytes_sent"] > 0
    assert rows[-1]["evaluate"]["accuracy"] > 0.2 and not rows[0]["evaluate"]


def test_a_stuck_agent_holds_nobody_up(fleet: Federation) -> None:
    """While one agent's training is frozen, the others' updates make all rounds."""
    run = fleet.submit(*SETTINGS, "run.rounds=12")
    stuck = wait_until(lambda: fleet.trainers(2), "a training process")
    for pid in stuck:
        os.kill(pid, signal.SIGSTOP)
    try:
        summary = fleet.wait_for_end(run)
    finally:
        for pid in stuck:
            os.kill(pid, signal.SIGCONT)
    assert summary["status"] == "finished" and summary["rounds"] == 12
    lines = (fleet.run_dir(run) / "clients.jsonl").read_text().splitlines()
    assert len(lines) == 12
    assert all(row["clients"] == 2 for row in fleet.rounds(run))
