"""The certificate authority of a server: issues short-lived certificates, by name and role.

The server decides the name, role and lifetime; those of a request are ignored.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..errors import IdentityError
from .identity import (
    Identity,
    Role,
    check_client_name,
    fingerprint_of,
    read_certificate,
    verify_issued,
)
from .keys import KeyPair, new_key, pem_of, read_key, requested_key

__all__ = ["SKEW", "Authority"]

AUTHORITY_DAYS: Final = 3653
SKEW: Final = timedelta(minutes=5)
"""How far another machine's clock may lag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """Issues certificates; with its key, any identity can be forged."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)

    @classmethod
    def create(cls, *, now: datetime, name: str = "Meadow authority") -> Authority:
        """Make a new authority, valid for ten years."""
        key = new_key()
        subject, until = _subject(name), now + timedelta(days=AUTHORITY_DAYS)
        builder = (
            _builder(subject, subject, key.public_key(), now=now, until=until)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
        )
        signed = builder.sign(key, hashes.SHA256())
        pem = signed.public_bytes(serialization.Encoding.PEM)
        return cls(certificate_pem=pem, key_pem=pem_of(key))

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the authority's certificate, which clients check."""
        return fingerprint_of(self.certificate_pem)

    def issue_server(self, hosts: Sequence[str], *, now: datetime, days: float) -> KeyPair:
        """Return a new key and certificate chain for a server.

        It is valid for `hosts` (names and addresses), localhost, 127.0.0.1 and ::1.

        Raises:
            IdentityError: a host cannot be in a certificate.
        """
        key = new_key()
        names = dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"])
        try:
            alternatives = x509.SubjectAlternativeName([_host(name) for name in names])
        except ValueError as error:
            raise IdentityError(f"a host cannot be in a certificate: {error}") from None
        pem = self._issue(
            key.public_key(),
            name="meadow-server",
            role="server",
            now=now,
            days=days,
            alternatives=alternatives,
        )
        return KeyPair(key_pem=pem_of(key), certificate_pem=pem + self.certificate_pem)

    def issue_client(
        self, request_pem: bytes, *, name: str, role: Role = "client", now: datetime, days: float
    ) -> bytes:
        """Return a certificate for the public key of a request; its other fields are ignored.

        Raises:
            IdentityError: the name or the role is not possible, or the request is malformed, not
                signed by its own key, or of another kind of key than P-256.
        """
        if role == "server":
            raise IdentityError(f"a request cannot be answered with the role {role!r}")
        return self._issue(
            requested_key(request_pem),
            name=check_client_name(name),
            role=role,
            now=now,
            days=days,
        )

    def verify(self, certificate_pem: bytes) -> Identity:
        """Return the identity of a certificate that this authority issued.

        Raises:
            IdentityError: another authority issued it, or it is not a certificate.
        """
        return verify_issued(certificate_pem, self.certificate_pem)

    def _issue(
        self,
        key: ec.EllipticCurvePublicKey,
        *,
        name: str,
        role: Role,
        now: datetime,
        days: float,
        alternatives: x509.SubjectAlternativeName | None = None,
    ) -> bytes:
        issuer = read_certificate(self.certificate_pem)
        own_key = read_key(self.key_pem)
        until = min(now + timedelta(days=days), issuer.not_valid_after_utc)
        purpose = ExtendedKeyUsageOID.CLIENT_AUTH
        if role == "server":
            purpose = ExtendedKeyUsageOID.SERVER_AUTH
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(own_key.public_key())
        builder = (
            _builder(_subject(name, role), issuer.subject, key, now=now, until=until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(identifier, critical=False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(own_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _subject(name: str, role: Role | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if role is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role))
    return x509.Name(attributes)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    *,
    now: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
