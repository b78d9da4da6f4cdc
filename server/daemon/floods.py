"""Ends connections that flood the server with HTTP/2 frames that never reach a handler.

gRPC ends most of them, except those that send priorities, settings or calls of unknown methods. So
the bytes that each connection has received, which the system counts, are compared with the bytes
of its useful messages. Where the system has no count (Linux's TCP_INFO), none is ended.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
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
_RECEIVED = struct.Struct("128xQ")
"""The offset of the received bytes in `struct tcp_info`."""

Peer = tuple[str, int]


class EndedConnection(NamedTuple):
    """A connection that was ended."""

    address: str
    port: int
    """The server's port."""
    fruitless_bytes: int


@dataclass(slots=True)
class _Known:
    received: int
    fruitless: float = 0.0


class Floods:
    """Counts useful bytes, and ends connections that bring too many others. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._useful: defaultdict[Peer, float] = defaultdict(float)
        self._known: dict[tuple[Peer, int], _Known] = {}
        self._scanned_at_s: float | None = None

    def useful(self, peer: str, size: int) -> None:
        """Count `size` bytes of a useful message; `peer` is gRPC's name of the sender."""
        with self._lock:
            self._useful[_parsed(peer)] += OVERHEAD * size + OVERHEAD_BYTES

    def end_fruitless(self, bounds: Mapping[int, int], *, now_s: float) -> list[EndedConnection]:
        """End the connections that exceed the bound of useless bytes of their port; return them.

        `bounds` has a bound, in bytes, for each of the server's ports.
        """
        if not sys.platform.startswith("linux"):
            return []
        with self._lock:
            useful, self._useful = self._useful, defaultdict(float)
        passed_s = now_s - (self._scanned_at_s if self._scanned_at_s is not None else now_s)
        self._scanned_at_s = now_s
        ended, present = [], {}
        for sock, inode in _accepted(bounds):
            with suppress(OSError):  # the connection was closed meanwhile
                peer = _peer_of(sock)
                (received,) = _RECEIVED.unpack_from(
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                )
                count = self._known.get((peer, inode)) or _Known(0)
                count.fruitless += received - count.received - useful[peer]
                count.fruitless -= FRUITLESS_BYTES_PER_S_MAX * passed_s
                count.fruitless, count.received = max(0.0, count.fruitless), received
                present[peer, inode] = count
                own_port = sock.getsockname()[1]
                if count.fruitless > bounds[own_port]:
                    ended.append(EndedConnection(peer[0], own_port, int(count.fruitless)))
                    sock.shutdown(socket.SHUT_RDWR)
        self._known = present
        return ended


def _accepted(ports: Collection[int]) -> Iterator[tuple[socket.socket, int]]:
    """Yield this process's connections to these ports, and the inode of each.

    The sockets are gRPC's descriptors, not duplicates: a number may be reused for an SQLite file
    meanwhile, and closing a duplicate of that would release SQLite's locks.
    """
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:  # the system has no /proc
        return
    for name in names:
        with suppress(OSError):
            found = os.fstat(int(name))
            if not stat.S_ISSOCK(found.st_mode):
                continue
            sock = socket.socket(fileno=int(name))
            try:
                if sock.family != socket.AF_UNIX and sock.getsockname()[1] in ports:
                    yield sock, found.st_ino
            finally:
                sock.detach()


def _peer_of(sock: socket.socket) -> Peer:
    host, port = sock.getpeername()[:2]
    return host.removeprefix("::ffff:"), port


def _parsed(peer: str) -> Peer:
    """Return the address and port in gRPC's `ipv4:127.0.0.1:50000` or `ipv6:%5B::1%5D:50000`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]").removeprefix("::ffff:"), int(port) if port.isdigit() else 0
