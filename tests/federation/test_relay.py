"""Relays: a tree of servers gives the model of one server, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from free_ports import free_port

from .processes import Federation, Process, meadow

pytestmark = pytest.mark.fleet

DIGITS = Path(__file__).parents[1] / "shared" / "digits"
ROUNDS = 4
CLIENTS = 5
SETTINGS = (
    f"run.rounds={ROUNDS}",
    f"run.min_clients={CLIENTS}",
    f"simulation.clients={CLIENTS}",
    "training.epochs=2",
)


class Branch(Federation):
    """A relay and the clients below it: a federation whose server is enrolled at another one."""

    def __init__(self, folder: Path, app: Path, above: Federation, name: str) -> None:
        self.folder, self.app, self.name = folder, app, name
        folder.mkdir()
        self.server_dir = folder / "relay"
        self.fleet_port, self.enroll_port = free_port(), free_port()
        self.clients = []
        invitation = folder / "invitation"
        meadow(
            "server", "invite", name, "--dir", str(above.server_dir), "--out", str(invitation)
        )  # fmt: skip
        self.said = meadow(
            "relay", "join", str(invitation), "--dir", str(self.server_dir), "--host", "localhost"
        )
        command = ["relay", "start", "--dir", str(self.server_dir)]
        command += ["--fleet-port", str(self.fleet_port), "--enroll-port", str(self.enroll_port)]
        self.server = Process(command, folder / "relay.log")


@contextmanager
def tree(folder: Path) -> Iterator[tuple[Federation, list[Branch]]]:
    """A server with one client of its own, and two relays with two clients each."""
    above, branches = Federation(folder, DIGITS), list[Branch]()
    try:
        above.start_server()
        for number in (1, 2):
            branch = Branch(folder / f"relay-{number}", DIGITS, above, f"relay-{number}")
            branches.append(branch)
            branch.start_server()
            branch.add_clients(2)
        above.add_clients(1)
        yield above, branches
    finally:
        for each in (*branches, above):
            each.close()


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
