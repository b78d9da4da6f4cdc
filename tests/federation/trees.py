"""A tree of servers for tests: a server, relays below it, and clients of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from free_ports import free_port

from .processes import Federation, Process, meadow

DIGITS = Path(__file__).parents[1] / "shared" / "digits"
CLIENTS = 5
"""Of the whole tree."""


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
    """A server with a client, a relay with two, and below that another relay with two."""
    above, branches = Federation(folder, DIGITS), list[Branch]()
    try:
        above.start_server()
        for number in (1, 2):
            branch = Branch(
                folder / f"relay-{number}", DIGITS, [above, *branches][-1], f"relay-{number}"
            )
            branches.append(branch)
            branch.start_server()
            branch.add_clients(2)
        above.add_clients(1)
        yield above, branches
    finally:
        for each in (*branches, above):
            each.close()
