"""What a client or a server checks of sets of clients, whoever sent them."""

from __future__ import annotations

import numpy as np

from ....errors import SecureAggregationError
from .binding import Roster
from .graph import Members
from .topology import Topology

__all__ = ["require_quorum", "require_within"]


def require_within(inner: Members, outer: Members, roster: Roster, what: str) -> None:
    """Check that everybody who did `what` did what came before: a client that is gone stays gone.

    Raises:
        SecureAggregationError: somebody is not.
    """
    strangers = np.flatnonzero(inner & ~outer)
    if len(strangers):
        name = roster.names[int(strangers[0])]
        raise SecureAggregationError(
            f"client {name!r} is listed as one that {what}, but it had dropped out before"
        )


def require_quorum(signers: Members, topology: Topology) -> None:
    """Check that so many signed that no other set of survivors can have as many.

    Raises:
        SecureAggregationError: fewer did.
    """
    count = int(signers.sum())
    if count < topology.quorum:
        raise SecureAggregationError(
            f"only {count} of {topology.clients} clients confirmed the survivors, and "
            f"{topology.quorum} are needed"
        )
