"""Lines to a server that can be cut, corrupted or silent: a relay between an agent and the fleet."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress

BLOCK_BYTES = 64 << 10


class Lines:
    """Relays every connection to a port of this machine, and does it harm when it is told.

    Attributes:
        port: where it listens.
        harmed: how many connections it has cut, corrupted or kept waiting.
    """

    def __init__(self, to_port: int, rng: random.Random) -> None:
        self._to_port = to_port
        self._rng = rng
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.harmed = 0
        self._open: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._silent_until_s = 0.0
        self._silence_is_noticed = False
        self._budget: list[int] = []
        self._corrupt = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection now."""
        with self._lock:
            self.harmed += len(self._open)
            for each in (end for pair in self._open for end in pair):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def cut_after(self, count_bytes: int) -> None:
        """End the connection that carries the next so many bytes."""
        with self._lock:
            self._budget = [count_bytes]

    def corrupt(self) -> None:
        """Flip a bit of what is carried next: TLS notices, and ends the connection."""
        self._corrupt = True

    def be_silent(self, seconds: float) -> None:
        """Carry nothing for a while, and end nothing."""
        self._silence_is_noticed = False
        self._silent_until_s = time.monotonic() + seconds

    def close(self) -> None:
        """Listen no more, and end what is open."""
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._to_port), 5.0)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                with self._lock:
                    self._open.add((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(BLOCK_BYTES):
                if (wait_s := self._silent_until_s - time.monotonic()) > 0:
                    self._kept_waiting()
                    time.sleep(wait_s)
                target.sendall(self._harm(data))
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {(source, target), (target, source)}
        source.close()

    def _kept_waiting(self) -> None:
        with self._lock:
            self.harmed += not self._silence_is_noticed
            self._silence_is_noticed = True

    def _harm(self, data: bytes) -> bytes:
        """Return what gets through of `data`.

        Raises:
            ConnectionError: it is here that the line is cut.
        """
        with self._lock:
            if self._corrupt:
                self._corrupt = False
                self.harmed += 1
                place = self._rng.randrange(len(data))
                return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            if self._budget:
                self._budget[0] -= len(data)
                if self._budget[0] <= 0:
                    self._budget.clear()
                    self.harmed += 1
                    raise ConnectionError
        return data
