"""Binds a client's signing key to its enrolment: a statement signed by its TLS key, with that key's
certificate.

Clients that trust the authority detect a client that is in the cohort twice, or under another's
node id or key. The holder of the authority's key can enrol clients that do not exist.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ...errors import IdentityError, SecureAggregationError
from ...privacy.secagg.terms.announcement import CERTIFICATE_BYTES_MAX, NODE_BYTES, Announcement
from ...transport.identity import UNREADABLE, Identity, read_certificate, verify_issued
from ...transport.keys import KeyPair, read_key

__all__ = ["certify_key", "require_certified"]

LENGTH_BYTES = 2
HASH = hashes.SHA256()
CHECKED_MAX = 4096
"""The clients whose verified statements are cached; only their dates are checked again."""


@lru_cache(maxsize=4)
def certify_key(public_key: bytes, *, node: int, pair: KeyPair) -> bytes:
    """Return the certificate and its key's signature over the statement of a signing key.

    Shapes: the certificate's length in two bytes, the certificate (DER), an ECDSA signature.
    """
    certificate = read_certificate(pair.certificate_pem).public_bytes(serialization.Encoding.DER)
    signature = read_key(pair.key_pem).sign(_statement(public_key, node), ec.ECDSA(HASH))
    return len(certificate).to_bytes(LENGTH_BYTES, "big") + certificate + signature


def require_certified(announcement: Announcement, *, ca_pem: bytes, now: datetime) -> None:
    """Check that every key of a cohort belongs to a different client that the authority enrolled.

    Raises:
        SecureAggregationError: a key does not, or its certificate has expired.
    """
    nodes: dict[str, int] = {}
    for node, key in announcement.keys.items():
        try:
            name = _name_in(announcement.certificates.get(node, b""), key, node, ca_pem, now)
        except (IdentityError, *UNREADABLE) as error:
            text = str(error) or "its enrolled key did not sign this"
            raise SecureAggregationError(
                f"client {node}'s signing key is not certified: {text}"
            ) from None
        if name in nodes:
            raise SecureAggregationError(
                f"clients {nodes[name]} and {node} of the cohort are both {name!r}"
            )
        nodes[name] = node


def _name_in(said: bytes, key: bytes, node: int, ca_pem: bytes, now: datetime) -> str:
    identity = _signed_by(said, key, node, ca_pem)
    identity.check(now, role="client")
    return identity.name


@lru_cache(maxsize=CHECKED_MAX)
def _signed_by(said: bytes, key: bytes, node: int, ca_pem: bytes) -> Identity:
    """Return the identity that signed the statement of `key`, certified by this authority."""
    if not LENGTH_BYTES < len(said) <= CERTIFICATE_BYTES_MAX:
        raise ValueError(
            f"a certificate must have {LENGTH_BYTES + 1} to {CERTIFICATE_BYTES_MAX} bytes, got "
            f"{len(said)}"
        )
    end = LENGTH_BYTES + int.from_bytes(said[:LENGTH_BYTES], "big")
    certificate = x509.load_der_x509_certificate(said[LENGTH_BYTES:end])
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    identity = verify_issued(pem, ca_pem)
    public = certificate.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise IdentityError("its certificate is for another kind of key")
    public.verify(said[end:], _statement(key, node), ec.ECDSA(HASH))
    return identity


def _statement(public_key: bytes, node: int) -> bytes:
    return b"meadow signing key 1\0" + node.to_bytes(NODE_BYTES, "big") + public_key
