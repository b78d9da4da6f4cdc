"""Private keys and requests for certificates; a key never leaves the machine that made it.

Keys are ECDSA on P-256, which every TLS library knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ..errors import IdentityError, StoreError
from .durable import write_file
from .identity import UNREADABLE, check_client_name, check_pem_size

__all__ = [
    "KeyPair",
    "create_request",
    "new_key",
    "pem_of",
    "read_key",
    "requested_key",
    "write_key",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A private key and its certificate; the key is never printed."""

    key_pem: bytes = field(repr=False)
    certificate_pem: bytes


def create_request(name: str, key_path: Path) -> bytes:
    """Return a request, as PEM, for a certificate for the key in `key_path`.

    If the file does not exist, a new key is written to it, readable only for its owner: a
    request that is repeated after a crash is therefore for the same key.

    Raises:
        IdentityError: the name is invalid, or the file holds no ECDSA key on P-256.
        StoreError: the key cannot be read or written.
    """
    check_client_name(name)
    if key_path.exists():
        try:
            key = read_key(key_path.read_bytes())
        except OSError as error:
            raise StoreError(f"{key_path} cannot be read: {error.strerror}") from error
    else:
        key = new_key()
        write_key(key_path, pem_of(key))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def write_key(path: Path, pem: bytes) -> None:
    """Write a private key durably, readable for its owner only from the first moment.

    Raises:
        StoreError: it cannot be written.
    """
    write_file(path, pem, mode=0o600)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a private key."""
    return ec.generate_private_key(ec.SECP256R1())


def read_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a PEM.

    Raises:
        IdentityError: it is not a private key for ECDSA on P-256.
    """
    try:
        key = serialization.load_pem_private_key(check_pem_size(pem), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise IdentityError("a private key cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError("a private key is of another kind than ECDSA on P-256")
    return key


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def requested_key(request_pem: bytes) -> ec.EllipticCurvePublicKey:
    """Return the public key in a request; the other fields of the request are ignored.

    Raises:
        IdentityError: it is malformed, not signed by its own key, or for another kind of key.
    """
    try:
        request = x509.load_pem_x509_csr(check_pem_size(request_pem))
        key = request.public_key()
        genuine = request.is_signature_valid
    except UNREADABLE:
        raise IdentityError("a request for a certificate cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("a request for a certificate has another key than ECDSA on P-256")
    if not genuine:
        raise IdentityError("a request for a certificate is not signed by its own key")
    return key
