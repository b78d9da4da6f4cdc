"""Connections whose bytes are of no use are ended, and those of use are not."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from meadow.server.daemon.floods import FRUITLESS_BYTES_PER_S_MAX, EndedConnection, Floods

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what has come")
BOUND = 100_000
FAMILIES = [socket.AF_INET, *[socket.AF_INET6] * socket.has_dualstack_ipv6()]


def ended_by(floods: Floods, bounds: Mapping[int, int], now_s: float) -> list[EndedConnection]:
    """Return the connections that are ended now."""
    return asyncio.run(floods.end_fruitless(bounds, now_s=now_s))


def server_of(family: socket.AddressFamily) -> socket.socket:
    """Return a listener at 127.0.0.1, of this family's sockets."""
    if family == socket.AF_INET:
        return socket.create_server(("127.0.0.1", 0))
    return socket.create_server(("::ffff:127.0.0.1", 0), family=family, dualstack_ipv6=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("useful", "seconds", "ended"), [(0, 0, True), (BOUND, 0, False), (0, 9, False)]
)
def test_what_is_of_no_use(
    useful: int, seconds: float, ended: bool, family: socket.AddressFamily
) -> None:
    """More than the bound ends a connection, unless a call wanted it, or it took a while."""
    floods = Floods()
    with server_of(family) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, listener.accept()[0] as ours:
            assert ended_by(floods, {port: BOUND}, 0.0) == []
            client.sendall(bytes(2 * BOUND))
            assert len(ours.recv(2 * BOUND, socket.MSG_WAITALL)) == 2 * BOUND
            host, number = client.getsockname()
            if useful:
                floods.useful(f"ipv4:{host}:{number}", useful)
            assert seconds * FRUITLESS_BYTES_PER_S_MAX > BOUND or not seconds
            found = ended_by(floods, {port: BOUND}, seconds)
            assert [(each.address, each.port) for each in found] == [(host, port)] * ended
            assert (client.recv(1) == b"") if ended else client.send(b"x")


def test_other_ports_are_let_be() -> None:
    """Only the listeners' connections are looked at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, listener.accept()[0] as ours:
            client.sendall(bytes(BOUND))
            assert ours.recv(BOUND, socket.MSG_WAITALL)
            assert ended_by(Floods(), {port + 1: 0}, 0.0) == []
            assert client.send(b"x")


def test_a_descriptor_that_is_used_again_is_another_connection() -> None:
    """The bytes of one that was closed are not those of the next one, which has its number."""
    floods = Floods()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        numbers = set()
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port)) as client:
                ours = listener.accept()[0]
                client.sendall(bytes(BOUND))
                assert ours.recv(BOUND, socket.MSG_WAITALL)
                assert ended_by(floods, {port: 3 * BOUND // 2}, 0.0) == []
                numbers.add(ours.fileno())
                ours.close()
        assert len(numbers) == 1


def test_other_descriptors_stay_as_they_are(tmp_path: Path) -> None:
    """Files, pipes and other sockets are neither closed nor ended, however often it looks, also
    where a file has the number of a connection that was closed."""
    floods, (reading, writing) = Floods(), os.pipe()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        (tmp_path / "file").open("w+") as file,
    ):
        port = listener.getsockname()[1]
        near, far = socket.socketpair()
        with near, far, socket.create_connection(("127.0.0.1", port)) as client:
            ours = listener.accept()[0]
            for look in range(3):
                assert ended_by(floods, {port: BOUND}, float(look)) == []
            number = ours.detach()
            os.dup2(file.fileno(), number)  # closes the connection
            assert client.recv(1) == b""
            for look in range(3, 6):
                assert ended_by(floods, {port: BOUND}, float(look)) == []
            assert os.write(number, b"text") == 4
            os.close(number)
            near.sendall(b"x")
            assert far.recv(1) == b"x"
        os.write(writing, b"y")
        assert os.read(reading, 1) == b"y"
    for end in (reading, writing):
        os.close(end)
