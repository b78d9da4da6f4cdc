"""Secure sums over gRPC: FedAvg's model within rounding, dead processes, and a strict owner."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from .processes import Federation, federation, kill_9, meadow, wait_until

pytestmark = pytest.mark.fleet

DIGITS = Path(__file__).parents[1] / "shared" / "digits"
CLIENTS = 4
SETTINGS = (f"run.min_clients={CLIENTS}", f"simulation.clients={CLIENTS}")
SECURE = (*SETTINGS, "privacy.secure_aggregation.enabled=true")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and four agents; the owner of the first wants nothing but secure sums."""
    with federation(tmp_path_factory.mktemp("secure"), DIGITS, clients=CLIENTS) as running:
        yield running


def test_the_model_is_that_of_plain_averaging(fleet: Federation, tmp_path: Path) -> None:
    """Within the steps of the fixed-point numbers; the reply names nobody's numbers."""
    run = fleet.submit(*SECURE, "run.rounds=3")
    summary = fleet.wait_for_end(run)
    assert summary["status"] == "finished", summary
    assert all(row["clients"] == CLIENTS and not row["failures"] for row in fleet.rounds(run))
    options = [part for setting in (*SETTINGS, "run.rounds=3") for part in ("--set", setting)]
    out = str(tmp_path / "plain")
    meadow("simulate", str(DIGITS), "--executor", "sequential", "--out", out, *options)
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    for name, values in load_file(fleet.run_dir(run) / "model.safetensors").items():
        np.testing.assert_allclose(values, plain[name], rtol=0, atol=1e-4)
    pins = json.loads((fleet.client_dir(1) / "identity" / "peers.json").read_text())
    assert len(pins) == CLIENTS


@pytest.mark.parametrize("who", ["worker", "daemon", "agent", "trainer"])
def test_a_process_dies_in_the_middle_of_sessions(fleet: Federation, who: str) -> None:
    """Whatever is killed, sessions go on from what was recorded: every round is of everybody."""
    run = fleet.submit(*SECURE, "run.rounds=8")
    for number, delay_s in ((1, 0.0), (3, 0.1), (5, 0.25)):
        fleet.wait_for_round(run, number)
        time.sleep(delay_s)
        if who == "worker":
            for pid in wait_until(fleet.workers, "a run worker"):
                kill_9(pid)
        elif who == "daemon":
            fleet.server.kill()
            fleet.start_server()
        elif who == "agent":
            fleet.clients[number % CLIENTS].kill()
            fleet.clients[number % CLIENTS].start()
        else:
            for pid in wait_until(lambda: fleet.trainers(2), "a training process"):
                kill_9(pid)
    summary = fleet.wait_for_end(run)
    assert summary["status"] == "finished", summary
    rows = fleet.rounds(run)
    assert [row["round"] for row in rows] == list(range(1, 9))
    assert all(row["clients"] == CLIENTS and row["failures"] == 0 for row in rows), rows


def has_begun(fleet: Federation, run: int, number: int, kind: str) -> bool:
    """Return whether a step of a round has begun; a round that is over is forgotten."""
    journal = sqlite3.connect(f"file:{fleet.server_dir / 'journal.sqlite'}?mode=ro", uri=True)
    try:
        query = "SELECT COUNT(*) FROM steps WHERE run_id = ? AND key = ?"
        (count,) = journal.execute(query, (run, f"{number}/{kind}/0")).fetchone()
        return bool(count) or len(fleet.rounds(run)) >= number
    finally:
        journal.close()


@pytest.fixture(scope="module")
def plain(fleet: Federation) -> int:
    """A run of four rounds without secure sums."""
    run = fleet.submit(*SETTINGS, "run.rounds=4", "evaluation.every=0")
    assert fleet.wait_for_end(run)["status"] == "finished"
    return run


@pytest.mark.parametrize("who", ["worker", "daemon"])
def test_the_server_dies_between_the_vectors_and_the_sum(
    fleet: Federation, plain: int, who: str
) -> None:
    """In each of R2 to R4: the session goes on or ends, and no model is of another sum."""
    run = fleet.submit(*SECURE, "run.rounds=4", "evaluation.every=0")
    for number, step in enumerate(("vector", "confirm", "unmask"), 1):
        kind = f"query.secure_{step}"
        wait_until(lambda n=number, k=kind: has_begun(fleet, run, n, k), f"{kind}, round {number}")
        if who == "worker":
            for pid in fleet.workers():
                kill_9(pid)
        else:
            fleet.server.kill()
            fleet.start_server()
    summary = fleet.wait_for_end(run)
    assert summary["status"] == "finished", summary
    rows = fleet.rounds(run)
    assert [row["clients"] for row in rows] == [CLIENTS] * 4, rows
    expected = load_file(fleet.run_dir(plain) / "model.safetensors")
    for name, values in load_file(fleet.run_dir(run) / "model.safetensors").items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("key", "least", "says"),
    [
        ("min_cohort", CLIENTS + 1, "smaller|cohort"),
        ("min_survivors", CLIENTS, "the fewest clients in a sum"),
        ("min_colluders", 2, "colluding clients withstood"),
    ],
)
def test_an_owners_own_bounds(fleet: Federation, key: str, least: int, says: str) -> None:
    """A client whose owner wants more than the run gives is not in it, and says why."""
    policy = fleet.client_dir(0) / "client.toml"
    before = policy.read_text()
    policy.write_text(f"{before}\nrequire_secure_aggregation = true\n{key} = {least}\n")
    try:
        run = fleet.submit(*SECURE, "run.rounds=1", "run.min_clients=3")
        assert fleet.wait_for_end(run)["status"] == "finished"
        [row] = fleet.rounds(run)
        assert (row["clients"], row["failures"]) == (CLIENTS - 1, 1)
        told = fleet.server.log.read_text() + fleet.clients[0].log.read_text()
        assert re.search(says, told)
    finally:
        policy.write_text(before)


def test_an_owner_who_wants_nothing_but_sums(fleet: Federation) -> None:
    """A plain run goes without that client, a secure one with it."""
    policy = fleet.client_dir(0) / "client.toml"
    before = policy.read_text()
    policy.write_text(before + "\nrequire_secure_aggregation = true\nmin_cohort = 4\n")
    try:
        plain = fleet.submit("run.min_clients=3", "run.rounds=1")
        assert fleet.wait_for_end(plain)["status"] == "finished"
        assert fleet.rounds(plain)[0]["clients"] == CLIENTS - 1
        assert fleet.clients[0].events("refused")
        secure = fleet.submit(*SECURE, "run.rounds=1")
        assert fleet.wait_for_end(secure)["status"] == "finished"
        assert fleet.rounds(secure)[0]["clients"] == CLIENTS
    finally:
        policy.write_text(before)


def test_a_stopped_secure_run_does_not_go_on(fleet: Federation) -> None:
    """Its clients have answered for the round that was under way, and do so once."""
    run, place = fleet.submit(*SECURE, "run.rounds=200"), ("--dir", str(fleet.server_dir))
    fleet.wait_for_round(run, 1)
    assert meadow("run", "stop", str(run), *place)["status"] == "stopped"
    refused = meadow("run", "resume", str(run), *place, code=1)
    assert "answer a round only once; submit the app again" in refused["stderr"]
