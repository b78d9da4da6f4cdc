"""A line between a client and a server that a test can cut or garble at any byte."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

READ_BYTES = 16 << 10
RESET = struct.pack("ii", 1, 0)


class Relay:
    """Passes connections on to an address; each carries so many bytes, both ways together.

    After them its line is cut without a word, or, if `garbles`, the next byte arrives with its
    bits turned over, which TLS notices.
    """

    def __init__(
        self, target: str, *, carries: Callable[[random.Random], int], garbles: bool = False
    ) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._carries, self._garbles = carries, garbles
        self._random = random.Random(8)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"localhost:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                far = socket.create_connection(self._target)
                line = _Line(near, far, self._carries(self._random), self._garbles)
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=line.carry, args=(source, sink), daemon=True).start()


class _Line:
    def __init__(self, near: socket.socket, far: socket.socket, left: int, garbles: bool) -> None:
        self._near, self._far, self._left, self._garbles = near, far, left, garbles
        self._lock = threading.Lock()

    def carry(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass bytes on until one end hangs up, or there were enough."""
        with suppress(OSError):
            while data := source.recv(READ_BYTES):
                with self._lock:
                    kept, self._left = data[: self._left], self._left - len(data)
                if len(kept) < len(data) and self._garbles:
                    kept += bytes((data[len(kept)] ^ 0xFF,)) + data[len(kept) + 1 :]
                    self._left = 1 << 62
                sink.sendall(kept)
                if len(kept) < len(data):
                    break
        for end in (self._near, self._far):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)
                end.close()
