"""One server without runs, and one whose run the tests play round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from .arena import Arena
from .live_server import LiveServer
from .raw_client import RawClient


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that nothing runs on; nobody else writes beside its folder."""
    with closing(LiveServer(tmp_path_factory.mktemp("alone") / "server")) as live:
        yield live


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """A run with two honest clients, on a server of its own."""
    folder = tmp_path_factory.mktemp("arena")
    with (
        closing(LiveServer(folder / "server")) as live,
        closing(Arena(live, folder / "a", "run.update_norm_max=100")) as made,
    ):
        yield made


@pytest.fixture(scope="session")
def mallory(arena: Arena) -> Iterator[RawClient]:
    """An enrolled client of the arena's server that means harm; she is there in every round."""
    client = RawClient(arena.server, "mallory", arena.folder)
    arena.admit(client)
    yield client
    client.close()


@pytest.fixture
def guest(arena: Arena, tmp_path: Path) -> Iterator[Callable[[str], RawClient]]:
    """Return what enrols another client at the arena; each is revoked in the end."""
    from meadow.transport import fleet_pb2 as pb

    guests: list[RawClient] = []

    def make(name: str) -> RawClient:
        guests.append(RawClient(arena.server, name, tmp_path))
        return guests[-1]

    yield make
    for client in guests:
        arena.server.admin.Revoke(pb.SiteName(name=client.name))
        client.close()
    arena.play()
