"""Keys of one session: agreement, derivation, signatures and sealed shares.

Every derivation and every signature includes the name of its purpose, and all but those of the
keys themselves include the session's context (see `binding.py`). So a key or signature made for
one use is not valid for another.

Source: X25519 (RFC 7748), Ed25519 (RFC 8032), HKDF-SHA256 (RFC 5869), AES-GCM (SP 800-38D).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ....errors import SecureAggregationError

__all__ = [
    "KEY_BYTES",
    "SEAL_BYTES",
    "SIGNATURE_BYTES",
    "AgreementKeyPair",
    "commit",
    "derive_key",
    "seal",
    "sign",
    "unseal",
    "verify",
]

KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEAL_BYTES = 16
PROTOCOL = b"meadow secagg 2"
NONCE = bytes(12)
"""The nonce is constant, as every sealing key seals one text only."""


@dataclass(frozen=True, slots=True, repr=False)
class AgreementKeyPair:
    """An X25519 key pair of one session."""

    secret: bytes
    public: bytes
    _key: X25519PrivateKey

    @classmethod
    def of(cls, secret: bytes) -> AgreementKeyPair:
        """Return the pair of a 32-byte secret key."""
        key = X25519PrivateKey.from_private_bytes(secret)
        return cls(secret, key.public_key().public_bytes_raw(), key)

    def agree(self, public: bytes, *, name: str) -> bytes:
        """Return the secret of the X25519 agreement with `public`, the key of the client `name`.

        Raises:
            SecureAggregationError: `public` is a point of low order, which gives no secret.
        """
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise SecureAggregationError(
                f"a public key of client {name!r} is a point of low order", suspect=name
            ) from error


def derive_key(secret: bytes, context: bytes, purpose: bytes, *clients: int) -> bytes:
    """Return the 32-byte key of one purpose and these clients; their order matters."""
    info = _labelled(purpose, b"".join(client.to_bytes(4, "big") for client in clients))
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=context, info=info).derive(secret)


def commit(seed: bytes, owner: bytes) -> bytes:
    """Return a commitment to 32 random bytes of the client with this long-term public key."""
    return sha256(_labelled(b"commitment", owner + seed)).digest()


def sign(key: Ed25519PrivateKey, context: bytes, purpose: bytes, *parts: bytes) -> bytes:
    """Return a signature over `parts`, for one purpose in one session."""
    return key.sign(_signed_bytes(context, purpose, parts))


def verify(
    key: bytes, signature: bytes, context: bytes, purpose: bytes, *parts: bytes, name: str
) -> None:
    """Verify the signature of the client `name`.

    Raises:
        SecureAggregationError: it is not a signature over these parts by this key.
    """
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(
            signature, _signed_bytes(context, purpose, parts)
        )
    except InvalidSignature as error:
        raise SecureAggregationError(
            f"the signature of client {name!r} over its {purpose.decode()} is not valid in this "
            "session, round, model and configuration",
            suspect=name,
        ) from error


def seal(key: bytes, text: bytes) -> bytes:
    """Return `text` encrypted and authenticated under a key that is used only once."""
    return AESGCM(key).encrypt(NONCE, text, None)


def unseal(key: bytes, sealed: bytes, *, name: str) -> bytes:
    """Return the text that the client `name` sealed.

    Raises:
        SecureAggregationError: the text was changed, or sealed under another key.
    """
    try:
        return AESGCM(key).decrypt(NONCE, sealed, None)
    except InvalidTag as error:
        raise SecureAggregationError(
            f"the shares from client {name!r} were changed on their way or made for somebody else",
            suspect=name,
        ) from error


def _signed_bytes(context: bytes, purpose: bytes, parts: tuple[bytes, ...]) -> bytes:
    sized = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return _labelled(purpose, context + sized)


def _labelled(purpose: bytes, rest: bytes) -> bytes:
    return PROTOCOL + len(purpose).to_bytes(1, "big") + purpose + rest
