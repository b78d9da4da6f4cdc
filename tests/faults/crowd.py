"""Many strangers at a listener: they connect and say nothing, or half of something, and stay."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from .raw_http2 import DATA, HEADERS, PREFACE, SETTINGS, frame_of, headers_of

PATH = "/meadow.v1.Enrollment/Enroll"
STREAMS = 8
DECLARED_BYTES = 60 << 10
AT_ONCE = 16
CONNECT_S = 30.0


def silent(sock: socket.socket) -> socket.socket:
    """Say nothing at all."""
    return sock


def half_open(sock: socket.socket) -> socket.socket:
    """Begin a TLS handshake and send no more of it."""
    sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100))
    return sock


def handshaken(sock: socket.socket) -> socket.socket:
    """Finish the handshake, and say nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(sock)


def holding_streams(sock: socket.socket) -> socket.socket:
    """Begin calls, and of each the message."""
    tls = handshaken(sock)
    calls = b"".join(
        frame_of(HEADERS, 4, stream, headers_of(PATH))
        + frame_of(DATA, 0, stream, b"\x00" + struct.pack(">I", DECLARED_BYTES) + bytes(100))
        for stream in range(1, 2 * STREAMS, 2)
    )
    tls.sendall(PREFACE + frame_of(SETTINGS, 0, 0, b"") + calls)
    return tls


KINDS: dict[str, Callable[[socket.socket], socket.socket]] = {
    "silent": silent,
    "half a handshake": half_open,
    "a handshake": handshaken,
    "calls": holding_streams,
}


@contextmanager
def crowd(address: str, *, count: int, kind: str, source: str) -> Iterator[int]:
    """Hold so many connections; gives how many of them there are."""
    host, _, port = address.rpartition(":")
    held: list[socket.socket] = []

    def join(_: int) -> None:
        with suppress(OSError):
            sock = socket.create_connection(
                (host, int(port)), CONNECT_S, source_address=(source, 0)
            )
            held.append(sock)
            held.append(KINDS[kind](sock))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(join, range(count)))
    try:
        yield len(held) // 2
    finally:
        for each in held:
            each.close()
