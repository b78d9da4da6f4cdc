"""Identities: the name, role and validity in a certificate.

A certificate's common name is the client's name, and its organisational unit is the role.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, Literal, get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from ..errors import IdentityError

__all__ = [
    "PEM_BYTES_MAX",
    "UNREADABLE",
    "Identity",
    "Role",
    "check_client_name",
    "check_pem_size",
    "fingerprint_of",
    "identity_of",
    "match_fingerprint",
    "peer_identity",
    "read_certificate",
    "verify_authority",
    "verify_issued",
]

UNREADABLE = (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion)
"""What cryptography raises of certificates and requests that it cannot read or verify."""

Role = Literal["client", "admin", "operator", "viewer", "server"]

PEM_BYTES_MAX: Final = 16_384
IDENTITIES_KEPT: Final = 1024

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
_FINGERPRINT = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ROLES: Final[tuple[Role, ...]] = get_args(Role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity in a certificate."""

    name: str
    role: Role
    serial: str
    """Hexadecimal; unique for an authority, and what a revocation names."""
    not_before: datetime
    not_after: datetime
    fingerprint: str

    def check(self, now: datetime, *, role: Role) -> None:
        """Check that the certificate is valid at `now` and has the role `role`.

        A connection may outlive its certificate, so check before every use.

        Raises:
            IdentityError: it has expired, is not valid yet, or is for another role.
        """
        if not self.not_before <= now <= self.not_after:
            span = f"from {self.not_before:%Y-%m-%d %H:%M} to {self.not_after:%Y-%m-%d %H:%M}"
            raise IdentityError(f"the certificate of {self.name!r} is valid {span}, not now")
        if self.role != role:
            raise IdentityError(f"{self.name!r} has the role {self.role!r}, not {role!r}")

    def needs_renewal(self, now: datetime) -> bool:
        """Return whether two thirds of the certificate's lifetime are over."""
        return now >= self.not_before + (self.not_after - self.not_before) * 2 / 3


def check_client_name(name: str) -> str:
    """Return `name` if it is valid for a client, or who administers a server.

    Raises:
        IdentityError: it is not 1 to 63 of [a-z0-9._-], the first a letter or digit.
    """
    if not _NAME.fullmatch(name):
        raise IdentityError(
            f"{name!r:.80} cannot be a name: 1 to 63 of a-z, 0-9, '.', '_', '-', "
            "and the first a letter or a digit"
        )
    return name


def fingerprint_of(certificate_pem: bytes) -> str:
    """Return the SHA-256 of a certificate, in hexadecimal.

    Raises:
        IdentityError: it is no certificate.
    """
    return read_certificate(certificate_pem).fingerprint(hashes.SHA256()).hex()


def match_fingerprint(certificate_pem: bytes, fingerprint: str) -> None:
    """Check that `fingerprint`, with or without colons, is the certificate's.

    Raises:
        IdentityError: it is malformed, or another certificate's.
    """
    wanted = fingerprint.replace(":", "").strip().lower()
    if not _FINGERPRINT.fullmatch(wanted):
        raise IdentityError("a fingerprint is a SHA-256: 64 hexadecimal digits, colons allowed")
    found = fingerprint_of(certificate_pem)
    if not hmac.compare_digest(found, wanted):
        raise IdentityError(f"the authority's fingerprint is {found}, expected {wanted}")


@lru_cache(maxsize=IDENTITIES_KEPT)  # a server asks at every call of every client
def identity_of(certificate_pem: bytes) -> Identity:
    """Return the identity in a certificate, unverified: TLS or `Authority.verify` verifies it.

    Raises:
        IdentityError: it is no certificate, or not one that an `Authority` issues.
    """
    certificate = read_certificate(certificate_pem)
    try:
        name = _only(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
        role = _only(certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME))
    except ValueError as error:
        raise IdentityError(f"a certificate's subject cannot be read: {error}") from None
    if role not in _ROLES:
        raise IdentityError(f"a certificate is for the unknown role {role!r:.40}")
    return Identity(
        name=check_client_name(name),
        role=role,
        serial=f"{certificate.serial_number:x}",
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def verify_issued(certificate_pem: bytes, ca_pem: bytes) -> Identity:
    """Return the identity in a certificate that this authority issued.

    Raises:
        IdentityError: it did not, or it is no certificate.
    """
    certificate = read_certificate(certificate_pem)
    try:
        certificate.verify_directly_issued_by(read_certificate(ca_pem))
    except UNREADABLE:
        raise IdentityError("a certificate was issued by another authority") from None
    return identity_of(certificate_pem)


def verify_authority(pem: bytes) -> bytes:
    """Return an authority's certificate, serialised again, if its own signature is valid.

    Raises:
        IdentityError: it is no certificate, or not one that signed itself.
    """
    certificate = read_certificate(pem)
    try:
        certificate.verify_directly_issued_by(certificate)
    except UNREADABLE:
        raise IdentityError(
            "it is not an authority's, or was changed since it was signed"
        ) from None
    return certificate.public_bytes(Encoding.PEM)


def peer_identity(auth_context: Mapping[str, Iterable[bytes]]) -> Identity:
    """Return the identity that gRPC has authenticated, from `ServicerContext.auth_context()`.

    Raises:
        IdentityError: the peer showed no certificate.
    """
    pem = next(iter(auth_context.get("x509_pem_cert", ())), None)
    if pem is None:
        raise IdentityError("the peer showed no certificate")
    return identity_of(pem)


def read_certificate(pem: bytes) -> x509.Certificate:
    """Return the first certificate in a PEM.

    Raises:
        IdentityError: it is none, too large, or has other bits than its signature is about.
    """
    try:
        certificate = x509.load_pem_x509_certificate(check_pem_size(pem))
    except UNREADABLE:
        raise IdentityError("a certificate cannot be read: it is no PEM of one") from None
    # A signature has no unused bits, but parsers take any number of them for none.
    if not certificate.public_bytes(Encoding.DER).endswith(b"\0" + certificate.signature):
        raise IdentityError("a certificate cannot be read: its signature is not whole bytes")
    return certificate


def check_pem_size(pem: bytes) -> bytes:
    """Return `pem` if it is small enough to be looked at.

    Raises:
        IdentityError: it is larger than `PEM_BYTES_MAX`.
    """
    if len(pem) > PEM_BYTES_MAX:
        raise IdentityError(f"a PEM of {len(pem)} bytes exceeds {PEM_BYTES_MAX}")
    return pem


def _only(attributes: Sequence[x509.NameAttribute[str | bytes]]) -> str:
    if len(attributes) != 1 or not isinstance(attributes[0].value, str):
        raise IdentityError("a certificate does not name one owner and one role")
    return attributes[0].value
