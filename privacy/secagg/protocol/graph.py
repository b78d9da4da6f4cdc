"""The neighbours of each client, from a public seed that nobody chose: the beacon.

Every party computes the ring itself, from the beacon that its own caller passed, so a server
cannot make a client use another ring. The ring depends on nothing else, so a server gains nothing
by trying many session ids or models.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from ....errors import SecureAggregationError
from .topology import Topology

__all__ = ["Graph", "Members"]

Members = NDArray[np.bool_]
"""A set of clients: whether each client of the roster is in it, by index."""


class Graph:
    """The graph of one session: its edges are the pairs of clients that share a mask.

    Guarantees: the graph depends on the topology and the beacon alone, on every machine. It is
        undirected.
    """

    def __init__(self, topology: Topology, beacon: bytes) -> None:
        self.topology = topology
        self.order = list(range(topology.clients))
        if topology.ring:
            start = sha256(b"meadow secagg ring 1" + beacon).digest()
            self.order.sort(key=lambda client: sha256(start + client.to_bytes(4, "big")).digest())
        self._places = {client: place for place, client in enumerate(self.order)}

    def neighbours(self, client: int) -> list[int]:
        """Return the clients that a client is masked against, in ascending order."""
        if not self.topology.ring:
            return [other for other in self.order if other != client]
        half, place, size = self.topology.neighbours // 2, self._places[client], len(self.order)
        steps = (*range(-half, 0), *range(1, half + 1))
        return sorted(self.order[(place + step) % size] for step in steps)

    def holders(self, client: int) -> list[int]:
        """Return the clients that hold shares of a client's secrets, in ascending order.

        The relation is mutual. On the complete graph a client also holds its own share, as in
        Bonawitz et al. (2017).
        """
        return self.neighbours(client) if self.topology.ring else self.order

    def require_enough(self, members: Members, what: str) -> None:
        """Check that a set of clients is large enough, in every window of the ring.

        Raises:
            SecureAggregationError: it is too small; to continue could reveal a sum of few clients.
        """
        count, least = int(members.sum()), self.topology.survivors_min
        if count < least:
            raise SecureAggregationError(
                f"only {count} of {self.topology.clients} clients {what}, and {least} are needed"
            )
        if not self.topology.ring:
            return
        window = self.topology.neighbours // 2
        row = members[self.order].astype(np.int64)
        sums = np.cumsum(np.concatenate([[0], row, row[: window - 1]]))
        fewest = int((sums[window:] - sums[:-window]).min())
        if fewest < self.topology.window_min:
            raise SecureAggregationError(
                f"only {fewest} of {window} clients in a row of the ring {what}, and "
                f"{self.topology.window_min} are needed to keep it in one piece"
            )
