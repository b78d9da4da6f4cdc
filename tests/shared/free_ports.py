"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket

BELOW = 32_768
"""From here on, systems give ports to outgoing connections, of which other tests have many."""


def free_port() -> int:
    """Return a port that nobody listens on now, and that no outgoing connection will take."""
    draws = random.SystemRandom()
    for _ in range(100):
        port = draws.randrange(16_384, BELOW)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
