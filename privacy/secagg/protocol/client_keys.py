"""A client's keys of one session, made before the client knows who else takes part.

A client introduces itself with the public keys, signed with its long-term key. They are in the
roster, and so in the context: a session fails for a client that was sent a roster with other
keys. As the keys are fresh, nobody can have known the roster before.
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
"""The context of the signature under an advertisement, as there is no session yet."""
ANYBODY = AgreementKeyPair.of(bytes(range(KEY_BYTES)))
"""A key pair whose secret is public; `require_agreeable` only tests keys with it."""


class Advertisement(NamedTuple):
    """A client's public keys of a session, and a commitment to the seed of its self-mask."""

    sealing: bytes
    masking: bytes
    commitment: bytes
    signature: bytes

    @classmethod
    def from_bytes(cls, record: bytes) -> Advertisement:
        """Parse a record of `ADVERTISEMENT_BYTES`."""
        cuts = [record[start : start + KEY_BYTES] for start in range(0, 3 * KEY_BYTES, KEY_BYTES)]
        return cls(cuts[0], cuts[1], cuts[2], record[3 * KEY_BYTES :])

    def require_signed(self, key: bytes, *, name: str) -> None:
        """Check that the client `name` signed it, with this long-term public key.

        Raises:
            SecureAggregationError: the signature is not valid.
        """
        fields = self.sealing + self.masking + self.commitment
        verify(key, self.signature, NO_CONTEXT, Purpose.KEYS, name.encode(), fields, name=name)

    def require_agreeable(self, *, name: str) -> None:
        """Check that a key agreement with these keys gives a secret.

        Raises:
            SecureAggregationError: a key is a point of low order.
        """
        for key in (self.sealing, self.masking):
            ANYBODY.agree(key, name=name)


class ClientKeys:
    """One client's key pairs for sealing and masking, and the seed of its self-mask.

    They serve one session: what it reveals would unmask the client's vector in a second one.
    """

    def __init__(self, entropy: Entropy) -> None:
        self._spent = False
        self.sealing = AgreementKeyPair.of(entropy(KEY_BYTES))
        self.masking = AgreementKeyPair.of(entropy(KEY_BYTES))
        self.seed = entropy(KEY_BYTES)

    def public(self, owner: bytes) -> bytes:
        """Return an advertisement without its signature; `owner` is the long-term public key."""
        return self.sealing.public + self.masking.public + commit(self.seed, owner)

    def advertise(self, signing_key: Ed25519PrivateKey, *, name: str) -> bytes:
        """Return the advertisement, of `ADVERTISEMENT_BYTES`; equal at every call."""
        fields = self.public(signing_key.public_key().public_bytes_raw())
        return fields + sign(signing_key, NO_CONTEXT, Purpose.KEYS, name.encode(), fields)

    def spend(self) -> ClientKeys:
        """Return these keys, once.

        Raises:
            SecureAggregationError: the keys were used before.
        """
        if self._spent:
            raise SecureAggregationError("these keys were used in a session; draw fresh ones")
        self._spent = True
        return self
