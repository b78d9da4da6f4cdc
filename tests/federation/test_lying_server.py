"""A server that lies, over gRPC: a run whose server side tries what agents must refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .processes import federation, kill_9, wait_until

pytestmark = pytest.mark.fleet

APP = Path(__file__).parent / "lying_app"
CLIENTS = 5


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the server was told; two agents are killed in the middle of its second session."""
    folder = tmp_path_factory.mktemp("lies")
    file = folder / "heard.json"
    with federation(folder, APP, clients=CLIENTS) as fleet:
        run = fleet.submit(f'result-file="{file}"')
        paused = file.with_suffix(".pause")
        wait_until(lambda: paused.exists() or file.exists(), "the second session")
        for index in (0, 1):
            for pid in fleet.trainers(index):
                kill_9(pid)
            fleet.clients[index].kill()
            fleet.clients[index].start()
        paused.unlink()
        summary = fleet.wait_for_end(run)
        assert summary["status"] == "finished", summary
        return dict(json.loads(file.read_text()))


def test_an_honest_round_is_a_sum(heard: dict[str, Any]) -> None:
    """Of everybody: the mean of what they add is that of their node ids."""
    [[clients, mean]] = heard["round 1"]
    assert clients == [1, 2, 3, 4, 5] and mean == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize("kind", ["vector", "confirm", "unmask"])
def test_messages_of_a_session_that_is_over(heard: dict[str, Any], kind: str) -> None:
    """Whatever is sent again is not answered."""
    assert "in no session" in heard[f"replayed query.secure_{kind}"]


def test_an_instruction_is_not_repeated(heard: dict[str, Any]) -> None:
    """Neither word for word nor in a new session of the same round."""
    assert "not repeated" in heard["replayed train.secure"]
    assert heard["the same round"] == []
    refused = heard["refused in the same round"]
    assert set(refused) == {"1", "2", "3", "4", "5"}
    begun = set(refused) - {"2"}  # which had refused the keys before it began
    assert all("not repeated" in refused[node] for node in begun)


def test_other_survivors_after_a_restart(heard: dict[str, Any]) -> None:
    """An agent that was killed remembers what it confirmed, and leaves a session of two sets."""
    assert "is requested, but this session is at unmask" in heard["other survivors"]
    assert "no session" in heard["refused in round 2"].get("2", "no session")


def test_shares_are_given_once(heard: dict[str, Any]) -> None:
    """Not again after a restart either, and not for another set of survivors."""
    assert "in no session" in heard["unmasked twice"]
    assert "in no session" in heard["unmasked for others"]
    [[clients, mean]] = heard["round 2"]
    assert clients == [1, 2, 3, 4, 5] and mean == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        ("a made-up client", "client 99's signing key is not certified"),
        ("swapped keys", "client 1's signing key is not certified: its enrolled key did not sign"),
    ],
)
def test_keys_that_are_not_their_clients(heard: dict[str, Any], lie: str, says: str) -> None:
    """The agent that is told of them asks for the authority's word, and the others have a sum."""
    assert says in heard[f"refused in {lie}"]["2"]
    [[clients, mean]] = heard[lie]
    assert clients == [1, 3, 4, 5] and mean == pytest.approx(13 / 4, abs=1e-3)
