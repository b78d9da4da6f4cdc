"""What an instruction to a relay, and its reply, say of the clients below it.

Both have one more record, which neither an app nor a client sees: a relay takes it out of the
instruction, and the server's grid out of the reply.

    instruction  "clients": node ids; "deadline-s": seconds that the server waits
    reply        "clients": whose updates are in the sums; "weights": numbers with exactly the sum of
                 their weights; "failed": node ids; "codes" and "reasons": parallel to these;
                 "clip-norm": to which each of them was clipped before, if differential privacy asks for it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .fleet_pb2 import Envelope

__all__ = [
    "LEAF_BITS",
    "LEAVES_MAX",
    "RELAY_RECORD",
    "REST_RECORD",
    "clients_behind",
    "is_below",
    "leaf_ids_from",
]

RELAY_RECORD: Final = "meadow.relay"
REST_RECORD: Final = "meadow.rest"
"""The record of a reply's arrays with what rounding to float64 took from a few of the sums."""
LEAF_BITS: Final = 20
"""A relay's clients have its node id and these bits more, so that ids are unique in a tree."""
LEAVES_MAX: Final = 50_000
"""Clients below one relay: their ids fit in one message."""
NODE_MAX: Final = (1 << 63) - 1
"""Node ids travel as signed numbers, too."""


def clients_behind(envelope: Envelope) -> Sequence[int] | None:
    """Return the clients that an envelope to or from a relay stands for; None for any other one."""
    for record in envelope.records:
        if record.name == RELAY_RECORD:
            for entry in record.configs.entries:
                if entry.key == "clients":
                    return list(entry.value.integers.values)
    return None


def is_below(leaf: int, relay: int) -> bool:
    """Return whether a node id is one of those that belong below a relay."""
    above = leaf >> LEAF_BITS
    while above > relay > 0:
        above >>= LEAF_BITS
    return above == relay > 0


def leaf_ids_from(relay: int) -> int | None:
    """Return the first node id below a relay; None if ids would be too long: two levels of relays
    always fit."""
    first = (relay << LEAF_BITS) + 1
    return first if first + (1 << LEAF_BITS) <= NODE_MAX else None
