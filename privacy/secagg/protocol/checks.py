"""Checks on sets of clients, which clients and server share."""

from __future__ import annotations

import numpy as np

from ....errors import SecureAggregationError
from .binding import Roster
from .graph import Members
from .topology import Topology

__all__ = ["require_quorum", "require_within"]


def require_within(inner: Members, outer: Members, roster: Roster, what: str) -> None:
    """Check that `inner`, the clients that did `what`, is a subset of `outer`: dropouts are final.

    Raises:
        SecureAggregationError: a client of `inner` is not in `outer`.
    """
    strangers = np.flatnonzero(inner & ~outer)
    if len(strangers):
        name = roster.names[int(strangers[0])]
        raise SecureAggregationError(
            f"client {name!r} is listed as one that {what}, but it had dropped out before"
        )


def require_quorum(signers: Members, topology: Topology) -> None:
    """Check that the signers are a quorum: no second set of survivors can have as many signers.

    Raises:
        SecureAggregationError: there are fewer signers than the topology's quorum.
    """
    count = int(signers.sum())
    if count < topology.quorum:
        raise SecureAggregationError(
            f"only {count} of {topology.clients} clients confirmed the survivors, and "
            f"{topology.quorum} are needed"
        )
