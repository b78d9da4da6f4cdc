"""Who a client is in secure sums, whom it takes the others for, and what it insists on.

A sum protects a client from the server only if the public keys of the others are theirs: whoever
invents them, invents the clients. How far keys can be trusted depends on where they come from:

    known_peers        from the owner, who has them from the other owners
    require_certified  from the server, certified by its authority (`secure_certificate`)
    pinned_peers       from the server, and never changed afterwards
    simulated_identity from the seed of a simulation, where nothing is secret
"""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, Context

from ....errors import SecureAggregationError
from ....randomness.entropy import Entropy, system_entropy
from ..protocol import Minimum
from ..protocol.keys import KEY_BYTES
from ..terms.announcement import Announcement

__all__ = [
    "Accept",
    "Identify",
    "SecureIdentity",
    "known_peers",
    "pinned_identity",
    "pinned_peers",
    "simulated_identity",
]

Accept = Callable[[Announcement], None]
"""Raises SecureAggregationError if a cohort's keys are not those of clients that one knows."""

OWN_KEY = "meadow-secure-identity"
PINS = "meadow-secure-peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureIdentity:
    """One client in secure sums.

    Attributes:
        node: its node id.
        key: its long-term signing key.
        accept: decides about a cohort's keys.
        certificate: what others may believe its key for; nothing under plain Flower.
        minimum: what it insists on, whatever a server plans.
        entropy: where the secrets of a session come from.
    """

    node: int
    key: Ed25519PrivateKey = field(repr=False)
    accept: Accept
    certificate: bytes = b""
    minimum: Minimum = field(default_factory=Minimum)
    entropy: Entropy = system_entropy

    @property
    def public_key(self) -> bytes:
        """The raw public key, 32 bytes."""
        return self.key.public_key().public_bytes_raw()


Identify = Callable[[Context], SecureIdentity]
"""Returns who the client of a Context is."""


def known_peers(known: Collection[bytes]) -> Accept:
    """Return what accepts cohorts of clients whose keys the owner has listed, and no others."""

    def accept(cohort: Announcement) -> None:
        for node, key in cohort.keys.items():
            if key not in known:
                raise SecureAggregationError(
                    f"client {node} has the key {key.hex()}, which is none of the known peers'"
                )

    return accept


def pinned_peers(pins: MutableMapping[str, Any]) -> Accept:
    """Return what accepts a key when it is first seen, and no other for that client afterwards.

    `pins` is where the keys are remembered.

    Guarantees: a server that begins to lie about a client that was seen before is found out.
        One that has lied about it from the start is not.
    """

    def accept(cohort: Announcement) -> None:
        for node, key in cohort.keys.items():
            if pins.get(str(node), key) != key:
                raise SecureAggregationError(
                    f"client {node} has another key than the one it had at first"
                )
        for node, key in cohort.keys.items():
            pins[str(node)] = key

    return accept


def pinned_identity(*, minimum: Minimum | None = None) -> Identify:
    """Return who a client is under any Flower: its key and the others' are in its Context.

    A key is made when it is first needed, and lasts as long as the run.
    """

    def identify(context: Context) -> SecureIdentity:
        state = context.state
        if OWN_KEY not in state:
            state[OWN_KEY] = ConfigRecord({"key": system_entropy(KEY_BYTES)})
        if PINS not in state:
            state[PINS] = ConfigRecord()
        secret = state.config_records[OWN_KEY]["key"]
        assert isinstance(secret, bytes)
        return SecureIdentity(
            node=context.node_id,
            key=Ed25519PrivateKey.from_private_bytes(secret),
            accept=pinned_peers(state.config_records[PINS]),
            minimum=minimum or Minimum(),
        )

    return identify


def simulated_identity(seed: int) -> Identify:
    """Return who a simulated client is: everything follows from the run's seed.

    Guarantees: the same seed gives the same keys and the same rounding, so the same model.
        Nothing is secret: this is for simulations alone.
    """

    def secret(node: int, *purpose: object) -> bytes:
        text = repr(("meadow simulated identity", seed, node, *purpose))
        return sha256(text.encode()).digest()

    def key_of(node: int) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(secret(node))

    def accept(cohort: Announcement) -> None:
        for node, key in cohort.keys.items():
            if key_of(node).public_key().public_bytes_raw() != key:
                raise SecureAggregationError(f"simulated client {node} has a key of its own")

    def identify(context: Context) -> SecureIdentity:
        return SecureIdentity(
            node=context.node_id,
            key=key_of(context.node_id),
            accept=accept,
            entropy=lambda size: secret(context.node_id, "entropy")[:size],
        )

    return identify
