"""Private rounds through relays: whom they clip, what owners count, and what is lost with a relay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from meadow.privacy.dp.accounting.gaussian import epsilon_of_cost

from .processes import Federation, Process, meadow, wait_until
from .trees import CLIENTS, DIGITS, Branch, tree

pytestmark = pytest.mark.fleet

ROUNDS = 3
SETTINGS = (
    f"run.rounds={ROUNDS}",
    f"run.min_clients={CLIENTS}",
    f"simulation.clients={CLIENTS}",
)


def private(multiplier: float, *terms: str) -> list[str]:
    """Return the settings of a run with central differential privacy."""
    given = ("enabled=true", f"noise_multiplier={multiplier}", "clip_norm=0.3", *terms)
    given += () if "sampling=poisson" in terms else ("sampling=fixed",)
    return [f"privacy.differential_privacy.{each}" for each in given]


def books(folder: Path) -> list[dict[str, Any]]:
    """Return what a client's owner sees of its runs."""
    return list(meadow("client", "privacy", "--dir", str(folder))["runs"])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, list[Branch]]]:
    """The tree, up; its owners have no rounds in their books."""
    with tree(tmp_path_factory.mktemp("tree")) as running:
        yield running


def test_owners_below_relays_keep_their_books(fleet: tuple[Federation, list[Branch]]) -> None:
    """A leaf counts each round by the noise that the server adds, knows the true cohort, and refuses what
    exceeds its budget; the run's claim is that of one server."""
    above, branches = fleet
    leaf, peer = branches[1].client_dir(0), branches[0].client_dir(0)
    policies = {
        folder / "client.toml": (folder / "client.toml").read_text() for folder in (leaf, peer)
    }
    budget = epsilon_of_cost(1.5 * 2.0**-2, 1e-6)
    for file, line in zip(
        policies,
        (f"epsilon_max = {budget}", f"min_cohort = {CLIENTS}"),
        strict=True,
    ):
        file.write_text(policies[file].replace("[policy]", f"[policy]\n{line}"))
    try:
        run = above.submit(*SETTINGS, "run.min_clients=3", *private(2.0))
        summary = above.wait_for_end(run)
    finally:
        for file, text in policies.items():
            file.write_text(text)
    assert summary["status"] == "finished", summary
    assert summary["privacy"]["releases"] == ROUNDS
    assert summary["privacy"]["epsilon"] == pytest.approx(epsilon_of_cost(ROUNDS * 2.0**-2, 1e-6))
    assert [row["clients"] for row in above.rounds(run)] == [CLIENTS, *[CLIENTS - 1] * (ROUNDS - 1)]
    assert [row["rounds"] for row in books(leaf)] == [1]
    (mine,) = books(peer)
    assert mine["run_id"] == str(run) and mine["rounds"] == ROUNDS
    assert mine["epsilon"] == pytest.approx(epsilon_of_cost(ROUNDS * 2.0**-2, 1e-6))
    told = json.dumps(meadow("run", "show", str(run), "--dir", str(above.server_dir)))
    assert "behind relay-1: " in told and "policy.epsilon_max is" in told, told


def test_a_relay_is_lost_in_a_private_round(fleet: tuple[Federation, list[Branch]]) -> None:
    """Its clients' updates are missing from the sum; the noise, the divisor and the claim stay those of
    the configured cohort, drawn in secret."""
    above, branches = fleet
    settings = ("run.rounds=2", "run.min_clients=2", "run.deadline_s=6", "training.epochs=1")
    run = above.submit(*settings, *private(2.0, "sampling=poisson", "population=5"), "run.cohort=4")
    above.wait_for_round(run, 1)
    branches[0].server.kill()
    try:
        summary = above.wait_for_end(run)
    finally:
        branches[0].start_server()
    assert summary["status"] == "finished", summary
    assert summary["privacy"]["releases"] == 2 and len(above.rounds(run)) == 2


def test_a_private_tree_clips_as_one_server(
    fleet: tuple[Federation, list[Branch]], tmp_path: Path
) -> None:
    """Relays clip, count who is within the adaptive clip, and are killed: with hardly any noise the model
    is that of one server's simulation, and owners' books have each round once."""
    above, branches = fleet
    settings = [*SETTINGS, *private(1e-6, "clipping=adaptive", "count_noise_stddev=1e-5")]
    run = above.submit(*settings)
    above.wait_for_round(run, 1)
    for branch in branches:
        branch.server.kill()
        branch.start_server()
    summary = above.wait_for_end(run)
    assert summary["status"] == "finished", summary
    assert [row["clients"] for row in above.rounds(run)] == [CLIENTS] * ROUNDS
    options = [part for setting in settings for part in ("--set", setting)]
    meadow("simulate", str(DIGITS), "--executor", "sequential", "--out", str(tmp_path), *options)
    owners = [each.client_dir(n) for each in branches for n in range(2)]
    assert [books(folder)[-1]["rounds"] for folder in owners] == [ROUNDS] * 4
    found = load(above.model(run))
    for name, values in load((tmp_path / "model.safetensors").read_bytes()).items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)
        assert np.abs(values).max() > 1e-3  # it is clipped, and trained


def test_a_client_moves_to_another_relay(fleet: tuple[Federation, list[Branch]]) -> None:
    """By an invitation of that relay, redeemed in its own folder: its settings and its books stay, and the
    next run counts it once, in its new place."""
    above, (new, old) = fleet
    folder, before = old.client_dir(1), books(old.client_dir(1))
    settings = (folder / "client.toml").read_text()
    assert before, "it has trained"
    old.clients[1].stop()
    meadow("site", "revoke", "client-1", "--dir", str(old.server_dir))
    token = meadow("server", "token", "ward-9", "--dir", str(new.server_dir))
    meadow(
        "client", "enroll", "--dir", str(folder), "--server", token["server"], "--token", "-",
        "--ca-fingerprint", token["ca_fingerprint"], stdin=token["token"],
    )  # fmt: skip
    moved = Process(["client", "start", "--dir", str(folder)], folder.parent / "moved.log")
    moved.start()
    try:
        wait_until(lambda: moved.events("connected"), "it connects")
        run = above.submit(*SETTINGS, *private(2.0))
        assert above.wait_for_end(run)["status"] == "finished"
    finally:
        moved.stop()
    assert [row["clients"] for row in above.rounds(run)] == [CLIENTS] * ROUNDS
    *kept, last = books(folder)
    assert kept == before and last["run_id"] == str(run) and last["rounds"] == ROUNDS
    assert (folder / "client.toml").read_text() == settings
