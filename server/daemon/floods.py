"""Ends connections that flood the server with HTTP/2 frames that never reach a handler.

gRPC ends most of them, except those that send priorities, settings or calls of unknown methods. So
the bytes that each connection has received, which the system counts, are compared with the bytes
of its useful messages. Where the system has no count (Linux's TCP_INFO), none is ended.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

__all__ = ["FRUITLESS_BYTES_PER_S_MAX", "EndedConnection", "Floods"]

FRUITLESS_BYTES_PER_S_MAX = 64 << 10
"""Useless bytes that a connection may bring per second, in addition to its bound."""
OVERHEAD = 1.05
OVERHEAD_BYTES = 128
"""Upper bound of the frames and TLS records of a message, in bytes."""
TOGETHER = 256
SO_COOKIE, COOKIE_BYTES = 57, 8
"""Linux's socket option, which Python does not name."""
_ANY = socket.AF_INET6, socket.SOCK_STREAM, 0
"""Given to Python for each socket, which would ask the system otherwise: the family with the longer
addresses, as only their length depends on it."""
_RECEIVED = struct.Struct("128xQ")
"""The offset of the received bytes in `struct tcp_info`."""

Peer = tuple[str, int]


class EndedConnection(NamedTuple):
    """A connection that was ended."""

    address: str
    port: int
    """The server's port."""
    fruitless_bytes: int


@dataclass(slots=True, kw_only=True)
class _Connection:
    cookie: bytes
    """The system's number of the connection: a descriptor's number is used again and again."""
    peer: Peer
    own_port: int
    received: int = 0
    fruitless: float = 0.0


class Floods:
    """Counts useful bytes, and ends connections that bring too many others."""

    def __init__(self) -> None:
        self._useful: defaultdict[str, float] = defaultdict(float)
        """By gRPC's name of the sender."""
        self._connections: dict[int, _Connection] = {}
        """By descriptor."""
        self._scanned_at_s: float | None = None

    def useful(self, peer: str, size: int) -> None:
        """Count `size` bytes of a useful message; `peer` is gRPC's name of the sender."""
        self._useful[peer] += OVERHEAD * size + OVERHEAD_BYTES

    async def end_fruitless(
        self, bounds: Mapping[int, int], *, now_s: float
    ) -> list[EndedConnection]:
        """End the connections that exceed the bound of useless bytes of their port; return them.

        `bounds` has a bound, in bytes, for each of the server's ports. Other tasks run between
        `TOGETHER` connections. In a thread, each of thousands of system calls would
        give the interpreter to the event loop and wait to get it back.
        """
        if not sys.platform.startswith("linux"):
            return []
        useful = self._take_useful()
        passed_s = now_s - (self._scanned_at_s if self._scanned_at_s is not None else now_s)
        self._scanned_at_s = now_s
        before, self._connections = self._connections, {}
        ended = []
        for number, descriptor in enumerate(_descriptors()):
            if number % TOGETHER == TOGETHER - 1:
                await asyncio.sleep(0)
            with suppress(OSError):  # it is no socket, or was closed meanwhile
                # gRPC's descriptor, not a duplicate: a number may be reused for an SQLite file
                # meanwhile, and closing a duplicate of that would release SQLite's locks
                sock = socket.socket(*_ANY, fileno=descriptor)
                try:
                    found = _connection(sock, before.get(descriptor), bounds)
                    if found is None:
                        continue
                    self._connections[descriptor] = found
                    received = _received_bytes(sock)
                    found.fruitless += received - found.received - useful.get(found.peer, 0.0)
                    found.fruitless -= FRUITLESS_BYTES_PER_S_MAX * passed_s
                    found.fruitless, found.received = max(0.0, found.fruitless), received
                    if found.fruitless > bounds[found.own_port]:
                        size = int(found.fruitless)
                        ended.append(EndedConnection(found.peer[0], found.own_port, size))
                        sock.shutdown(socket.SHUT_RDWR)
                finally:
                    sock.detach()
        return ended

    def _take_useful(self) -> dict[Peer, float]:
        """Return the useful bytes by sender since the last time."""
        counted, self._useful = self._useful, defaultdict(float)
        return {_parsed(name): size for name, size in counted.items()}


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # the system has no /proc
        return []


def _connection(
    sock: socket.socket, known: _Connection | None, ports: Container[int]
) -> _Connection | None:
    """Return a socket's connection, `known` if it is that; None if it is not to one of `ports`."""
    cookie = sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, COOKIE_BYTES)
    if known is not None and known.cookie == cookie:
        return known
    own = sock.getsockname()
    if not isinstance(own, tuple) or own[1] not in ports:  # a path is of another kind of socket
        return None
    host, port = sock.getpeername()[:2]
    return _Connection(cookie=cookie, peer=(host.removeprefix("::ffff:"), port), own_port=own[1])


def _received_bytes(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
    return int(_RECEIVED.unpack(info)[0])


def _parsed(peer: str) -> Peer:
    """Return the address and port in gRPC's `ipv4:127.0.0.1:50000` or `ipv6:%5B::1%5D:50000`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]").removeprefix("::ffff:"), int(port) if port.isdigit() else 0
