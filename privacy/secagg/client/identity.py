"""A client's identity in secure sums, its trust in the others' keys, and the least protection.

A sum protects a client from the server only if the others' public keys are genuine: a server that
makes up keys makes up clients. Trust in a key depends on its source:

    known_peers        the owner, who has the keys from the other owners
    require_certified  the server, with certificates of its authority (`secure_certificate`)
    pinned_peers       the server; a key that was seen once must not change
    simulated_identity the seed of a simulation, where nothing is secret
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
"""Raises SecureAggregationError if a key of the cohort is not trusted."""

OWN_KEY = "meadow-secure-identity"
PINS = "meadow-secure-peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureIdentity:
    """One client in secure sums.

    Attributes:
        node: its node id.
        key: its long-term signing key.
        accept: checks a cohort's keys.
        certificate: proves to others that the key is its own; empty under plain Flower.
        minimum: the least protection that it accepts, for any plan of the server.
        entropy: the source of a session's secrets.
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
"""Returns the identity of a Context's client."""


def known_peers(known: Collection[bytes]) -> Accept:
    """Return a check that accepts only cohorts whose keys the owner has listed."""

    def accept(cohort: Announcement) -> None:
        for node, key in cohort.keys.items():
            if key not in known:
                raise SecureAggregationError(
                    f"client {node} has the key {key.hex()}, which is not in known_peers"
                )

    return accept


def pinned_peers(pins: MutableMapping[str, Any]) -> Accept:
    """Return a check that accepts each client's first key, and afterwards no other for it.

    `pins` stores the keys, in hexadecimal by node id.

    Guarantees: detects a server that replaces the key of a client that was seen before; does not
        detect a server that sent a false key from the start.
    """

    def accept(cohort: Announcement) -> None:
        for node, key in cohort.keys.items():
            if pins.get(str(node), key) != key:
                raise SecureAggregationError(
                    f"client {node} has another key than the one that it had at first"
                )
        for node, key in cohort.keys.items():
            pins[str(node)] = key

    return accept


def pinned_identity(*, minimum: Minimum | None = None) -> Identify:
    """Return identities under plain Flower: the client's Context stores its key and the others'.

    A client's key is made when it is first needed, and lasts as long as the run.
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
    """Return identities of simulated clients, derived from the run's seed.

    Guarantees: the same seed gives the same keys and the same rounding, so the same model.
        Nothing is secret: this is for simulations only.
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
