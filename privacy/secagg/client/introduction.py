"""A client's introduction before a secure sum: its long-term key, and fresh keys for one session.

The ring of a large cohort follows from all clients' introductions. A client takes part only with
its own newest keys, so nobody can have known the ring before this client sent them.
"""

from __future__ import annotations

import time
from hashlib import sha256, shake_256
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from ....errors import SecureAggregationError
from ....randomness.entropy import Entropy
from ..protocol import ClientKeys
from ..terms.announcement import name_of
from ..terms.member import Member
from .identity import SecureIdentity

__all__ = ["expand", "introduce", "keys_of", "spend_seed"]

INTRODUCED = "meadow-secure-introduction"
SEED_BYTES = 32
AGE_S_MAX = 3600.0
"""The age limit of drawn keys, so that a client restored from a backup does not use keys twice."""


def introduce(state: RecordDict, identity: SecureIdentity, setup: bytes) -> ConfigRecord:
    """Draw the keys of the next session, which replace unused ones, and return the introduction.

    `setup` is the hash of the client's configuration outside the message.

    Guarantees: two introductions differ even if entropy is repeated, as in a simulation.
    """
    introduced: Any = state.config_records.get(INTRODUCED, {})
    number = introduced.get("number", 0) + 1
    fresh = identity.entropy(SEED_BYTES) + number.to_bytes(8, "big")
    seed = sha256(b"meadow secure seed 2\0" + fresh).digest()
    advertised = keys_of(seed).advertise(identity.key, name=name_of(identity.node))
    state[INTRODUCED] = ConfigRecord(
        {"number": number, "seed": seed, "advertised": advertised, "drawn-at-s": time.time()}
    )
    member = Member(
        key=identity.public_key,
        advertised=advertised,
        setup=setup,
        certificate=identity.certificate,
    )
    return member.record()


def spend_seed(state: RecordDict, advertised: bytes) -> bytes:
    """Return the seed of the newest keys, and delete it, so that the keys serve one session.

    Raises:
        SecureAggregationError: `advertised` are not the newest keys, there are none, or they are
            older than `AGE_S_MAX`.
    """
    introduced: Any = state.config_records.get(INTRODUCED, {})
    if "seed" not in introduced or introduced["advertised"] != advertised:
        raise SecureAggregationError(
            "the announcement does not have the keys that this client drew last: a session must "
            "begin only once, and after its clients have introduced themselves"
        )
    if abs(time.time() - introduced["drawn-at-s"]) > AGE_S_MAX:
        raise SecureAggregationError(
            f"the keys that this client drew last are not of the last {AGE_S_MAX:.0f} s: a session "
            "must begin soon after its clients have introduced themselves"
        )
    state[INTRODUCED] = ConfigRecord({"number": introduced["number"]})
    seed: bytes = introduced["seed"]
    return seed


def keys_of(seed: bytes) -> ClientKeys:
    """Return the keys of a session, derived from a seed."""
    return ClientKeys(expand(b"keys" + seed))


def expand(seed: bytes) -> Entropy:
    """Return a deterministic source of pseudorandom bytes, derived from a seed."""
    drawn = 0

    def entropy(size_bytes: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return shake_256(seed + drawn.to_bytes(8, "big")).digest(size_bytes)

    return entropy
