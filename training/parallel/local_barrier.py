"""A barrier for the ranks of one machine: each notifies every other through a socket.

A collective of torch wakes several threads on each side, and where all cores are busy that takes
longer than the sums themselves. Here a rank polls its sockets for a while before it yields its
core.
"""

from __future__ import annotations

import os
import select
import socket
import time
from pathlib import Path

from torch import distributed as dist

from ...machine.process_limits import available_cores

__all__ = ["LocalBarrier"]

LOOKING_S = 0.002
"""To be woken on another core takes a while; most waits are shorter than this."""
WORD = b"."


class LocalBarrier:
    """Lets no rank pass until all have come; a rank that is lost is a `ConnectionError`."""

    def __init__(self, peers: list[socket.socket], timeout_s: float) -> None:
        """Begin with a connection to every other rank."""
        self._peers, self._timeout_s = peers, timeout_s
        self._looking_s = LOOKING_S if available_cores() > len(peers) else 0.0
        for peer in peers:
            peer.setblocking(False)

    @classmethod
    def meet(cls, folder: Path, rank: int, ranks: int, *, timeout_s: float) -> LocalBarrier:
        """Connect the ranks, which all call this at once, in a folder that no other user can open.

        Raises:
            OSError: one of them did not come in time.
        """
        peers = []
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / str(rank)))
            listener.listen(ranks)
            dist.barrier()
            for other in range(rank):
                peer = socket.socket(socket.AF_UNIX)
                peers.append(peer)
                peer.settimeout(timeout_s)
                peer.connect(str(folder / str(other)))
            listener.settimeout(timeout_s)
            while len(peers) < ranks - 1:
                peers.append(listener.accept()[0])
        return cls(peers, timeout_s)

    def wait(self) -> None:
        """Return once all ranks have made as many calls as this one.

        Raises:
            ConnectionError: a rank is gone.
            TimeoutError: a rank did not come in time.
        """
        for peer in self._peers:
            peer.send(WORD)
        for peer in self._peers:
            if not self._hear(peer):
                raise ConnectionError("another process is gone")

    def _hear(self, peer: socket.socket) -> bytes:
        until_s = time.perf_counter() + self._looking_s
        while time.perf_counter() < until_s:
            try:
                return peer.recv(len(WORD))
            except BlockingIOError:
                os.sched_yield()
        waiting = select.poll()
        waiting.register(peer, select.POLLIN)
        if not waiting.poll(1000 * self._timeout_s):
            raise TimeoutError(f"another process did not come within {self._timeout_s:g} s")
        return peer.recv(len(WORD))
