"""A client's keys of one session, made before it knows who else takes part.

A client that says who it is shows the public halves, signed with its long-term key. They are in
the roster, and so in the context: a session is of exactly these keys, and all parts of it fail for
whoever was shown others. As they are fresh, nobody can have known the roster before.
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ....errors import SecureAggregationError
from ....randomness.entropy import Entropy
from .keys import KEY_BYTES, SIGNATURE_BYTES, AgreementKeyPair, commit, sign, verify
from .steps import Purpose

__all__ = ["ADVERTISEMENT_BYTES", "Advertisement", "ClientKeys"]

ADVERTISEMENT_BYTES = 3 * KEY_BYTES + SIGNATURE_BYTES
NO_CONTEXT = b""
"""Of the signature: there is no session yet."""
ANYBODY = AgreementKeyPair.of(bytes(range(KEY_BYTES)))
"""Whose secret everybody knows."""


class Advertisement(NamedTuple):
    """A client's public keys of a session, and what it says about its self-mask's seed."""

    sealing: bytes
    masking: bytes
    commitment: bytes
    signature: bytes

    @classmethod
    def from_bytes(cls, record: bytes) -> Advertisement:
        """Return what a record of `ADVERTISEMENT_BYTES` says."""
        cuts = [record[start : start + KEY_BYTES] for start in range(0, 3 * KEY_BYTES, KEY_BYTES)]
        return cls(cuts[0], cuts[1], cuts[2], record[3 * KEY_BYTES :])

    def require_signed(self, key: bytes, *, name: str) -> None:
        """Check that it is of the client of this name, with this long-term public key.

        Raises:
            SecureAggregationError: it is not.
        """
        said = self.sealing + self.masking + self.commitment
        verify(key, self.signature, NO_CONTEXT, Purpose.KEYS, name.encode(), said, name=name)

    def require_agreeable(self, *, name: str) -> None:
        """Check that something secret can be agreed on with these keys.

        Raises:
            SecureAggregationError: one is a point of low order.
        """
        for key in (self.sealing, self.masking):
            ANYBODY.agree(key, name=name)


class ClientKeys:
    """One client's key pairs for sealing and masking, and its self-mask's seed.

    They are good for one session: in a second one, what the first revealed would unmask it.
    """

    def __init__(self, entropy: Entropy) -> None:
        self._spent = False
        self.sealing = AgreementKeyPair.of(entropy(KEY_BYTES))
        self.masking = AgreementKeyPair.of(entropy(KEY_BYTES))
        self.seed = entropy(KEY_BYTES)

    def public(self, owner: bytes) -> bytes:
        """Return what an advertisement says, before the signature; `owner` is a long-term key."""
        return self.sealing.public + self.masking.public + commit(self.seed, owner)

    def advertise(self, signing_key: Ed25519PrivateKey, *, name: str) -> bytes:
        """Return the advertisement, `ADVERTISEMENT_BYTES`: the same at every call."""
        said = self.public(signing_key.public_key().public_bytes_raw())
        return said + sign(signing_key, NO_CONTEXT, Purpose.KEYS, name.encode(), said)

    def spend(self) -> ClientKeys:
        """Return these keys, once.

        Raises:
            SecureAggregationError: they were used before.
        """
        if self._spent:
            raise SecureAggregationError("these keys were used in a session; draw fresh ones")
        self._spent = True
        return self
