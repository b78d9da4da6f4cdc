"""kill -9 of every process, at many points: the run finishes by itself, with the same model."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meadow.errors import MeadowError
from meadow.server.remote.connection import admin_stub
from meadow.simulations.run import simulate
from meadow.transport import fleet_pb2 as pb

from .processes import Federation, federation, kill_9, meadow, wait_until

pytestmark = pytest.mark.fleet

DIGITS = Path(__file__).parents[1] / "shared" / "digits"
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


def test_a_restored_server_goes_on(fleet: Federation, undisturbed: bytes, tmp_path: Path) -> None:
    """A backup that was made in the middle of a run replaces the server some rounds later: the agents
    repeat those rounds, and the model is that of a run that nothing happened to."""
    run = fleet.submit(*SETTINGS)
    fleet.wait_for_round(run, 3)
    meadow("server", "backup", str(tmp_path / "b.tar"), "--dir", str(fleet.server_dir))
    fleet.wait_for_round(run, 6)
    fleet.server.kill()
    lost = fleet.rounds(run)
    fleet.server_dir.rename(tmp_path / "lost")
    said = meadow("server", "restore", str(tmp_path / "b.tar"), "--dir", str(fleet.server_dir))
    assert "damaged" not in str(said)
    assert 3 <= len(fleet.rounds(run)) < len(lost)
    fleet.start_server()
    assert fleet.wait_for_end(run)["status"] == "finished"
    rows = fleet.rounds(run)
    assert [row["round"] for row in rows] == list(range(1, ROUNDS + 1))
    assert all(row["clients"] == 3 and row["failures"] == 0 for row in rows), rows
    assert fleet.model(run) == undisturbed
    later = fleet.submit(*SETTINGS)
    assert later > run + 999, "what clients keep of the lost server's runs is not met again"
    assert fleet.wait_for_end(later)["status"] == "finished"


LONGER = (*SETTINGS, "run.rounds=40", "training.epochs=1")


def test_a_stopped_run_goes_on(fleet: Federation) -> None:
    """Stopped twice and resumed, the second time by a daemon that was started since, it ends with
    the bytes of one that nothing happened to; a run that is under way or finished is refused."""
    undisturbed, run = fleet.submit(*LONGER), 0
    fleet.wait_for_end(undisturbed)

    def ask(call: str) -> Any:
        with admin_stub(fleet.server_dir, None) as stub:
            return getattr(stub, call)(pb.RunId(id=run), timeout=60)

    run = fleet.submit(*LONGER)
    for rounds in (8, 22):
        fleet.wait_for_round(run, rounds)
        with pytest.raises(MeadowError, match="is running; only a failed or stopped run"):
            ask("Resume")
        assert ask("Stop").status == "stopped"
        assert fleet.wait_for_end(run)["status"] == "stopped"
        if rounds == 22:
            kill_daemon(fleet, 0)
        resumed = ask("Resume")
        assert rounds <= resumed.round < 40 and resumed.status in ("queued", "running")
    assert fleet.wait_for_end(run)["status"] == "finished"
    wait_until(lambda: ask("ShowRun").run.status == "finished", "the run's end")
    assert [row["round"] for row in fleet.rounds(run)] == list(range(1, 41))
    assert fleet.model(run) == fleet.model(undisturbed)
    place = ("--dir", str(fleet.server_dir))
    assert "is finished" in meadow("run", "resume", str(run), *place, code=1)["stderr"]


ASYNCHRONOUS = (*SETTINGS, "run.rounds=5", "rounds.kind=fedbuff", "rounds.buffer_size=2")
ONE_BY_ONE = (*ASYNCHRONOUS, "rounds.concurrency=1")
"""Who is asked, and for what, follows from the seed if one client works at a time."""


def test_without_waiting_nothing_is_lost_or_counted_twice(
    fleet: Federation, tmp_path: Path
) -> None:
    """Its worker and its daemon killed, an asynchronous run goes on with the updates that it had.

    Where one client works at a time, a real federation's bytes are those of the simulation.
    """
    run = fleet.submit(*ONE_BY_ONE)
    fleet.wait_for_round(run, 1)
    kill_worker(fleet, 0)
    fleet.wait_for_round(run, 3)
    kill_daemon(fleet, 0)
    assert fleet.wait_for_end(run)["status"] == "finished"
    out = tmp_path / "simulated"
    simulate(DIGITS, overrides=ONE_BY_ONE, out=out, executor="sequential")
    assert fleet.model(run) == (out / "model.safetensors").read_bytes()
    rows = fleet.rounds(run)
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[-1]["bytes_received"] > 0 and rows[-1]["bytes_sent"] > 0
    assert rows[-1]["evaluate"]["accuracy"] > 0.2 and not rows[0]["evaluate"]


def test_without_waiting_a_stuck_agent_holds_nobody_up(fleet: Federation) -> None:
    """While one agent's training is frozen, the others' updates make all rounds."""
    run = fleet.submit(*ASYNCHRONOUS, "run.rounds=9")
    stuck = wait_until(lambda: fleet.trainers(2), "a training process")
    for pid in stuck:
        os.kill(pid, signal.SIGSTOP)
    try:
        summary = fleet.wait_for_end(run)
    finally:
        for pid in stuck:
            os.kill(pid, signal.SIGCONT)
    assert (summary["status"], summary["rounds"]) == ("finished", 9), summary
    assert all(row["clients"] == 2 for row in fleet.rounds(run))
    lines = (fleet.run_dir(run) / "clients.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, 10))
