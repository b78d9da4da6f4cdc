"""Serves the pages to browsers on this machine, until SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.applications import Starlette

from ..errors import UnreachableError
from ..transport.address import Address
from .sessions import Sessions
from .web import Browsers

__all__ = ["serve_pages"]

LOOPBACK: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 64
REQUEST_BYTES_MAX: Final = 32 << 10
DRAIN_S: Final = 2


def serve_pages(
    make: Callable[[Browsers], Starlette], *, port: int, invite: Callable[[str], None]
) -> None:
    """Serve an application on the loopback address.

    `invite` gets each new one-time link: one at the start, and another whenever one was used.

    Raises:
        UnreachableError: the port is taken.
    """
    with _listening(port) as listener:
        sessions = Sessions(clock=time.monotonic)
        own_port = int(listener.getsockname()[1])
        host = f"{LOOPBACK}:{own_port}"

        def new_link() -> None:
            invite(f"http://{host}/enter/{sessions.new_link()}")

        browsers = Browsers(
            sessions=sessions,
            hosts=frozenset({host, f"localhost:{own_port}"}),
            entered=new_link,
            ending=lambda: web.should_exit,
        )
        config = uvicorn.Config(
            lambda: make(browsers),
            factory=True,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            http="h11",
            h11_max_incomplete_event_size=REQUEST_BYTES_MAX,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=DRAIN_S,
        )
        web = uvicorn.Server(config)
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
        ):  # uvicorn ends by them, and raises them again
            signal.signal(number, lambda *_: None)
        new_link()
        web.run(sockets=[listener])


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UnreachableError(
            f"{Address(LOOPBACK, port)} cannot be listened on: {error.strerror}; give another port "
            "with --port, or 0 for any"
        ) from error
    return listener
