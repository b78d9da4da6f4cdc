"""Relays: a tree of servers gives the model of one server, to the last bit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from .processes import Federation, kill_9, meadow, wait_until
from .trees import CLIENTS, DIGITS, Branch, tree

pytestmark = pytest.mark.fleet

ROUNDS = 3
SETTINGS = (
    f"run.rounds={ROUNDS}",
    f"run.min_clients={CLIENTS}",
    f"simulation.clients={CLIENTS}",
    "training.epochs=2",
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, list[Branch]]]:
    """The tree, up."""
    with tree(tmp_path_factory.mktemp("tree")) as running:
        yield running


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of the same clients without any network."""
    folder = tmp_path_factory.mktemp("alone")
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    meadow("simulate", str(DIGITS), "--executor", "sequential", "--out", str(folder), *options)
    return (folder / "model.safetensors").read_bytes()


def test_a_tree_gives_the_model_of_one_server(
    fleet: tuple[Federation, list[Branch]], alone: bytes
) -> None:
    """The clients behind relays are drawn, asked and counted as if they were the server's own."""
    above, _ = fleet
    run = above.submit(*SETTINGS)
    summary = above.wait_for_end(run)
    assert summary["status"] == "finished", summary
    assert [row["clients"] for row in above.rounds(run)] == [CLIENTS] * ROUNDS
    assert above.model(run) == alone


def test_a_relay_is_killed_in_every_round(
    fleet: tuple[Federation, list[Branch]], alone: bytes
) -> None:
    """kill -9 of one relay or the other at any moment: the same bytes, and nobody is left out."""
    above, branches = fleet
    run = above.submit(*SETTINGS)
    for number in range(ROUNDS):
        above.wait_for_round(run, number)
        time.sleep(0.2 * number)  # in dispatch, in training, in its answer
        branches[number % 2].server.kill()
        branches[number % 2].start_server()
    assert above.wait_for_end(run)["status"] == "finished"
    assert [row["clients"] for row in above.rounds(run)] == [CLIENTS] * ROUNDS
    assert above.model(run) == alone


def test_what_fails_behind_a_relay_is_named(fleet: tuple[Federation, list[Branch]]) -> None:
    """The run goes on without a client that is gone, and says which, behind which relay."""
    above, branches = fleet
    gone = branches[1].clients[1]
    run = above.submit("run.rounds=2", "run.min_clients=4", "run.deadline_s=4", "training.epochs=1")
    above.wait_for_round(run, 1)
    gone.kill()
    assert above.wait_for_end(run)["status"] == "finished"
    gone.start()
    shown = meadow("run", "show", str(run), "--dir", str(above.server_dir))
    told = json.dumps(shown)
    assert "relay-1" in told
    wait_until(lambda: len(gone.events("connected")) > 1, "the client is back")


def test_rounds_need_not_wait_for_relays(fleet: tuple[Federation, list[Branch]]) -> None:
    """Asynchronous rounds: the server's own client goes on while relays, one below the other, and the
    run's worker are killed; what a relay's clients made of older params counts."""
    above, branches = fleet
    run = above.submit(
        "run.rounds=5000",
        f"run.min_clients={CLIENTS}",
        "rounds.kind=fedbuff",
        "rounds.buffer_size=3",
    )

    def counted() -> set[int]:
        file = above.run_dir(run) / "clients.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        known = [json.loads(line)["clients"] for line in lines if line.endswith("\n")]
        return {client for clients in known for client in clients}

    for number, branch in enumerate(branches, start=1):
        above.wait_for_round(run, number)
        branch.server.kill()
        for pid in above.workers():
            kill_9(pid)
        branch.start_server()
    wait_until(lambda: len(counted()) == CLIENTS, "all clients count")
    meadow("run", "stop", str(run), "--dir", str(above.server_dir))
    assert above.wait_for_end(run)["status"] == "stopped"
    assert all(row["clients"] >= 3 for row in above.rounds(run))


def test_what_cannot_hold_behind_a_relay_is_refused(
    fleet: tuple[Federation, list[Branch]],
) -> None:
    """A run that needs single updates fails with a sentence that says why, and what to do."""
    above, _ = fleet
    run = above.submit("run.rounds=1", f"run.min_clients={CLIENTS}", "robust.aggregation=median")
    summary = above.wait_for_end(run)
    assert summary["status"] == "failed"
    assert "behind a relay" in summary["cause"] and "selection.tags" in summary["cause"]
