"""Connections that bring bytes and nothing in them: frames that gRPC answers, and nobody here sees.

gRPC ends most of them by itself; not those that send priorities, settings or calls of methods that
there are not. So what each connection has received, which the system counts, is compared with what has
come of it in messages that were wanted. Where the system does not say (TCP_INFO of Linux), none is ended.
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
"""So much more than its bound may come of a connection each second without any use."""
OVERHEAD = 1.05
OVERHEAD_BYTES = 128
"""Of a message: its frames and TLS, which are less."""
_RECEIVED = struct.Struct("128xQ")
"""Where `struct tcp_info` has the bytes received."""

Peer = tuple[str, int]


class EndedConnection(NamedTuple):
    """A connection that was ended."""

    address: str
    port: int
    """Ours, that it had called."""
    fruitless_bytes: int


@dataclass(slots=True)
class _Known:
    received: int
    fruitless: float = 0.0


class Floods:
    """Counts what is of use, and ends the connections that bring too much else. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._useful: defaultdict[Peer, float] = defaultdict(float)
        self._known: dict[tuple[Peer, int], _Known] = {}
        self._scanned_at_s: float | None = None

    def useful(self, peer: str, size: int) -> None:
        """So many bytes of a wanted message have come; `peer` is gRPC's name of the sender."""
        with self._lock:
            self._useful[_parsed(peer)] += OVERHEAD * size + OVERHEAD_BYTES

    def end_fruitless(self, bounds: Mapping[int, int], *, now_s: float) -> list[EndedConnection]:
        """End the connections to these ports of ours that have brought more of no use than the port's bound."""
        if not sys.platform.startswith("linux"):
            return []
        with self._lock:
            useful, self._useful = self._useful, defaultdict(float)
        passed_s = now_s - (self._scanned_at_s if self._scanned_at_s is not None else now_s)
        self._scanned_at_s = now_s
        ended, present = [], {}
        for sock, inode in _accepted(bounds):
            with suppress(OSError):  # it is closed meanwhile
                peer = _peer_of(sock)
                (received,) = _RECEIVED.unpack_from(
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                )
                known = self._known.get((peer, inode)) or _Known(0)
                known.fruitless += received - known.received - useful[peer]
                known.fruitless -= FRUITLESS_BYTES_PER_S_MAX * passed_s
                known.fruitless, known.received = max(0.0, known.fruitless), received
                present[peer, inode] = known
                own_port = sock.getsockname()[1]
                if known.fruitless > bounds[own_port]:
                    ended.append(EndedConnection(peer[0], own_port, int(known.fruitless)))
                    sock.shutdown(socket.SHUT_RDWR)
        self._known = present
        return ended


def _accepted(ports: Collection[int]) -> Iterator[tuple[socket.socket, int]]:
    """Yield this process's connections to these ports, and the inode of each.

    They are gRPC's, and are lent, not copied: to close a copy of another file, should the number be that by then,
    would let go of the locks that SQLite has on it.
    """
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:  # this system does not show it
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
