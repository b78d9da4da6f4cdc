"""Differential privacy over gRPC: the owner's budget, and books that survive dead processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from meadow.privacy.dp.accounting.concentrated import epsilon_of_line
from meadow.privacy.dp.accounting.gaussian import epsilon_of_cost

from .processes import Federation, federation, kill_9, meadow, wait_until

pytestmark = pytest.mark.fleet

DIGITS = Path(__file__).parents[1] / "shared" / "digits"
CLIENTS = 3
SECTION = "privacy.differential_privacy"
PRIVATE = (
    "run.min_clients=2",
    f"simulation.clients={CLIENTS}",
    f"{SECTION}.enabled=true",
    f"{SECTION}.noise_multiplier=2.0",
    f"{SECTION}.sampling=fixed",
)
COST = 2.0**-2


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and three agents."""
    with federation(tmp_path_factory.mktemp("private"), DIGITS, clients=CLIENTS) as running:
        yield running


def spent(fleet: Federation, client: int) -> dict[str, object]:
    """Return what a client's owner sees."""
    return meadow("client", "privacy", "--dir", str(fleet.client_dir(client)))


def test_a_killed_worker_is_never_under_counted(fleet: Federation) -> None:
    """The server counts a round that it noised twice as two; the clients, who trained once, one."""
    run = fleet.submit(*PRIVATE, "run.rounds=6")
    for number in (1, 3):
        fleet.wait_for_round(run, number)
        for pid in wait_until(fleet.workers, "a run worker"):
            kill_9(pid)
    summary = fleet.wait_for_end(run)
    assert summary["status"] == "finished", summary
    releases = [row["privacy"]["releases"] for row in fleet.rounds(run)]
    assert len(releases) == 6 and releases == sorted(set(releases))
    assert summary["privacy"]["releases"] >= 6
    assert summary["privacy"]["epsilon"] >= epsilon_of_cost(6 * COST, 1e-6)
    for client in range(CLIENTS):
        (mine,) = spent(fleet, client)["runs"]  # type: ignore[misc]
        assert mine["run_id"] == str(run) and mine["rounds"] >= 6


def test_a_servers_bound_holds_over_runs(fleet: Federation) -> None:
    """What the run before asked for leaves no room for as much again; no client is asked."""
    (before,) = (asked := meadow("server", "privacy", "--dir", str(fleet.server_dir)))["asked"]
    assert before["count"] >= 6 and asked["epsilon"] == epsilon_of_cost(
        before["count"] * COST, 1e-6
    )
    file = fleet.server_dir / "server.toml"
    text, bound = file.read_text(), epsilon_of_cost((before["count"] + 3) * COST, 1e-6)
    file.write_text(f"{text}\nepsilon_max = {bound}\n")
    try:
        summary = fleet.wait_for_end(fleet.submit(*PRIVATE, "run.rounds=4"))
        assert summary["status"] == "failed" and "epsilon_max in server.toml" in summary["cause"]
    finally:
        file.write_text(text)
    after = meadow("server", "privacy", "--dir", str(fleet.server_dir))
    assert after["asked"] == [before] and len(spent(fleet, 0)["runs"]) == 1  # type: ignore[arg-type]


def test_an_owners_budget_holds_over_runs(fleet: Federation) -> None:
    """The client takes part for as long as its budget lasts; the run goes on without it."""
    before = spent(fleet, 0)["runs"][0]["rounds"]  # type: ignore[index]
    policy = fleet.client_dir(0) / "client.toml"
    text, budget = policy.read_text(), epsilon_of_cost((before + 2.5) * COST, 1e-6)
    policy.write_text(f"{text}\nepsilon_max = {budget}\n")
    try:
        run = fleet.submit(*PRIVATE, "run.rounds=4")
        assert fleet.wait_for_end(run)["status"] == "finished"
    finally:
        policy.write_text(text)
    assert [row["clients"] for row in fleet.rounds(run)] == [3, 3, 2, 2]
    assert spent(fleet, 0)["epsilon"] <= budget  # type: ignore[operator]
    assert spent(fleet, 0)["runs"][1]["rounds"] == 2  # type: ignore[index]
    refused = fleet.clients[0].events("refused")
    assert "policy.epsilon_max is" in refused[-1]["message"]
    assert f"was spent in {before + 2} rounds" in refused[-1]["message"]


def test_clients_noise_within_secure_sums_is_in_their_books(fleet: Federation) -> None:
    """Each client counts its rounds once, by its own share of the noise: no owner has said whom of
    the others it trusts. The run's claim is by the noise of the whole sum."""
    run = fleet.submit(
        *PRIVATE,
        "run.rounds=2",
        "run.min_clients=3",
        f"{SECTION}.noise=distributed",
        "privacy.secure_aggregation.enabled=true",
    )
    summary = fleet.wait_for_end(run)
    assert summary["status"] == "finished", summary
    assert summary["privacy"]["epsilon"] == pytest.approx(epsilon_of_line(2 * COST, 1e-6))
    for client in range(CLIENTS):
        (mine,) = [each for each in runs_of(fleet, client) if each["run_id"] == str(run)]
        assert mine["rounds"] == 2
        assert mine["epsilon"] == pytest.approx(epsilon_of_line(2 * CLIENTS * COST, 1e-6))


def test_records_have_books_of_their_own(fleet: Federation) -> None:
    """A run of DP-SGD: so much of a record, and no bound for the client."""
    pytest.importorskip("opacus")
    run = fleet.submit(
        "run.min_clients=2",
        f"simulation.clients={CLIENTS}",
        f"{SECTION}.enabled=true",
        f"{SECTION}.unit=record",
        f"{SECTION}.sampling_rate=0.2",
        f"{SECTION}.noise_multiplier=2.0",
        "run.rounds=2",
    )
    summary = fleet.wait_for_end(run)
    assert summary["status"] == "finished", summary
    assert summary["privacy"]["unit"] == "record"
    for client in range(CLIENTS):
        (mine,) = [each for each in runs_of(fleet, client) if each["run_id"] == str(run)]
        assert mine["rounds"] == 2 and mine["epsilon"] is None
        assert summary["privacy"]["epsilon"] <= mine["record_epsilon"] < 20


def runs_of(fleet: Federation, client: int) -> list[dict[str, object]]:
    """Return what a client's owner sees of its runs."""
    return spent(fleet, client)["runs"]  # type: ignore[return-value]
