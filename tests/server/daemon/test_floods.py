"""Connections whose bytes are of no use are ended, and those of use are not."""

from __future__ import annotations

import socket
import sys

import pytest

from meadow.server.daemon.floods import FRUITLESS_BYTES_PER_S_MAX, Floods

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what has come")
BOUND = 100_000


@pytest.mark.parametrize(
    ("useful", "seconds", "ended"), [(0, 0, True), (BOUND, 0, False), (0, 9, False)]
)
def test_what_is_of_no_use(useful: int, seconds: float, ended: bool) -> None:
    """More than the bound ends a connection, unless a call wanted it, or it took a while."""
    floods = Floods()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, listener.accept()[0] as ours:
            assert floods.end_fruitless({port: BOUND}, now_s=0.0) == []
            client.sendall(bytes(2 * BOUND))
            assert len(ours.recv(2 * BOUND, socket.MSG_WAITALL)) == 2 * BOUND
            host, number = client.getsockname()
            if useful:
                floods.useful(f"ipv4:{host}:{number}", useful)
            assert seconds * FRUITLESS_BYTES_PER_S_MAX > BOUND or not seconds
            found = floods.end_fruitless({port: BOUND}, now_s=seconds)
            assert [(each.address, each.port) for each in found] == [(host, port)] * ended
            assert (client.recv(1) == b"") if ended else client.send(b"x")


def test_other_ports_are_let_be() -> None:
    """Only the listeners' connections are looked at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, listener.accept()[0] as ours:
            client.sendall(bytes(BOUND))
            assert ours.recv(BOUND, socket.MSG_WAITALL)
            assert Floods().end_fruitless({port + 1: 0}, now_s=0.0) == []
            assert client.send(b"x")
