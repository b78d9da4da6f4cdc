"""A TCP line that counts its bytes, and is held or cut after so many of them.

Bytes are those of the encrypted connections, all of them together: what a transfer that was
interrupted moves again is in them, and also what was under way when it was.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

__all__ = ["CutLine"]

PIECE_BYTES = 1 << 18


class CutLine:
    """Passes connections on to a port of this machine, until the process ends.

    Attributes:
        port: where it listens.
        carried: the bytes so far, "down" to the client and "up" to the server.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._changed = threading.Condition()
        self._after: dict[str, tuple[int, Callable[[], None]]] = {}
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self.carried = {"down": 0, "up": 0}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def once(self, way: str, carried_bytes: int, action: Callable[[], None]) -> None:
        """Call `action` when one way has carried so many bytes more; nothing moves meanwhile."""
        with self._changed:
            self._after[way] = self.carried[way] + carried_bytes, action

    def cut(self) -> None:
        """End all connections; new ones are accepted."""
        for pair in list(self._pairs):
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            pair = (near, far)
            self._pairs.add(pair)
            for way, source, sink in (("up", near, far), ("down", far, near)):
                work = (way, source, sink, pair)
                threading.Thread(target=self._carry, args=work, daemon=True).start()

    def _carry(
        self,
        way: str,
        source: socket.socket,
        sink: socket.socket,
        pair: tuple[socket.socket, socket.socket],
    ) -> None:
        piece = memoryview(bytearray(PIECE_BYTES))
        with suppress(OSError):
            while size := source.recv_into(piece):
                self._count(way, size)
                sink.sendall(piece[:size])
        self._pairs.discard(pair)
        for end in pair:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _count(self, way: str, size: int) -> None:
        with self._changed:
            self.carried[way] += size
            after, action = self._after.get(way, (0, None))
            if action is not None and self.carried[way] >= after:
                del self._after[way]
                action()
