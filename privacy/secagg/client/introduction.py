"""What a client says of itself before a secure sum: its key, and fresh keys for one session.

The ring of a large cohort follows from what all its clients say here. Who takes part only with
its own newest keys knows that nobody had seen the ring before it spoke.
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
"""A client whose memory is put back to that of an older day has no keys that it can use again."""


def introduce(state: RecordDict, identity: SecureIdentity, setup: bytes) -> ConfigRecord:
    """Draw the keys of the next session, in the place of any that were not used, and return what
    says who this client is, and what `setup` the server has told it.

    Guarantees: two introductions differ even where entropy is repeated, as in a simulation.
    """
    kept: Any = state.config_records.get(INTRODUCED, {})
    number = kept.get("number", 0) + 1
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
    """Return the seed of the keys that were shown last, and forget that it may be used.

    Raises:
        SecureAggregationError: these are others, or there are none: the session was not made of
            what this client said last. Or they are too old.
    """
    kept: Any = state.config_records.get(INTRODUCED, {})
    if "seed" not in kept or kept["advertised"] != advertised:
        raise SecureAggregationError(
            "the announcement does not have the keys that this client drew last: a session is "
            "begun once, after its clients have said who they are"
        )
    if abs(time.time() - kept["drawn-at-s"]) > AGE_S_MAX:
        raise SecureAggregationError(
            f"the keys that this client drew last are not of the last {AGE_S_MAX:.0f} s: a session "
            "is begun soon after its clients have said who they are"
        )
    state[INTRODUCED] = ConfigRecord({"number": kept["number"]})
    seed: bytes = kept["seed"]
    return seed


def keys_of(seed: bytes) -> ClientKeys:
    """Return the keys of a session that a seed stands for."""
    return ClientKeys(expand(b"keys" + seed))


def expand(seed: bytes) -> Entropy:
    """Return the random bytes that a seed stands for, the same in the same order."""
    drawn = 0

    def entropy(size_bytes: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return shake_256(seed + drawn.to_bytes(8, "big")).digest(size_bytes)

    return entropy
