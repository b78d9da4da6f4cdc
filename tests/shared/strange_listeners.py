"""What may answer in place of a server: web servers, proxies, things that close or keep silent."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def listener(answer: Callable[[socket.socket], None], host: str = "127.0.0.1") -> Iterator[int]:
    """Listen, hand each connection to `answer` in a thread of its own, and yield the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.bind((host, 0))
    listening.listen(64)

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def web_server(connection: socket.socket) -> None:
    """Speak HTTP/1, whatever is said."""
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def mail_server(connection: socket.socket) -> None:
    """Speak first, in plain text."""
    connection.sendall(b"220 mail.example.org ESMTP\r\n")
    connection.recv(4096)


def closes(connection: socket.socket) -> None:
    """Say nothing and hang up."""


class ConnectProxy:
    """A proxy that connects to what it is asked for, by names that only it knows.

    Attributes:
        asked: what it was asked to CONNECT to, and by whom.
    """

    def __init__(self, hosts: dict[str, tuple[str, int]], login: str | None = None) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self._hosts = hosts
        self._login = login

    def __call__(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(1)
        lines = head.decode().split("\r\n")
        verb, target, _ = lines[0].split(" ")
        said = [line.split(": ", 1)[1] for line in lines if line.startswith("Proxy-Authorization")]
        self.asked.append((target, said[0] if said else None))
        if self._login is not None and said != [self._login]:
            connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        elif verb != "CONNECT" or target not in self._hosts:
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        else:
            with socket.create_connection(self._hosts[target]) as other:
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Words: many\r\n\r\n")
                _relay(connection, other)


def _relay(one: socket.socket, other: socket.socket) -> None:
    while True:
        for ready in select.select([one, other], [], [])[0]:
            data = ready.recv(65536)
            if not data:
                return
            (other if ready is one else one).sendall(data)
