"""DIR/identity: the client's identity, as files that survive a crash during a renewal.

key.pem            the private key; only its owner may read it
certificate.pem    the client's certificate, signed by the server's authority
ca.pem             the server's authority
client.json        the client's name and node id, and the fleet's address
ledger             the id of the privacy ledger in agent.sqlite for this client's data
key.next.pem       only during a renewal: the key of the requested certificate
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from ...errors import ConfigError, IdentityError
from ...transport.durable import make_folder, sync_folder, write_file
from ...transport.fleet_pb2 import Certificate
from ...transport.identity import (
    Identity,
    identity_of,
    read_certificate,
    verify_authority,
    verify_issued,
)
from ...transport.keys import KeyPair, create_request, read_key
from ...transport.tls import channel_credentials

__all__ = ["ClientIdentity", "IdentityFolder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientIdentity:
    """A client's name, and the certificate and key that prove it."""

    name: str
    node_id: int
    fleet_address: str
    key_pem: bytes = field(repr=False)
    certificate_pem: bytes
    ca_pem: bytes

    @property
    def certificate(self) -> Identity:
        """The identity in the certificate."""
        return identity_of(self.certificate_pem)

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials for mutual TLS."""
        pair = KeyPair(key_pem=self.key_pem, certificate_pem=self.certificate_pem)
        return channel_credentials(self.ca_pem, pair)


class IdentityFolder:
    """The folder `identity` of an agent's folder."""

    def __init__(self, directory: Path, name: str = "identity") -> None:
        self.folder = directory / name
        self._key = self.folder / "key.pem"
        self._next_key = self.folder / "key.next.pem"
        self._certificate = self.folder / "certificate.pem"
        self._ca = self.folder / "ca.pem"
        self._client = self.folder / "client.json"

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the identity."""
        return self._key, self._next_key, self._certificate, self._ca, self._client

    @property
    def exists(self) -> bool:
        """Whether there is an identity."""
        return self._client.exists()

    def request(self) -> bytes:
        """Make a key, unless there is one, and return a request for its first certificate.

        The server ignores the name in the request: it knows the client of its token.
        """
        make_folder(self.folder, mode=0o700)
        return create_request("new", self._key)

    def store(self, certificate: Certificate) -> ClientIdentity:
        """Store the server's answer; `client.json`, which completes the identity, is written last.

        Raises:
            IdentityError: the certificate is for another key.
        """
        if not _belong_together(self._key.read_bytes(), certificate.certificate_pem):
            raise IdentityError("the server sent a certificate for another key")
        write_file(self._certificate, certificate.certificate_pem)
        write_file(self._ca, certificate.ca_pem)
        about = {
            "name": certificate.client,
            "node_id": certificate.node_id,
            "fleet_address": certificate.fleet_address,
        }
        write_file(self._client, (json.dumps(about, indent=2) + "\n").encode())
        return self.load()

    def load(self) -> ClientIdentity:
        """Read the identity, and complete a renewal that a crash interrupted.

        Raises:
            ConfigError: there is no identity.
            IdentityError: its files do not match.
        """
        if not self.exists:
            raise ConfigError(
                f"{self.folder.parent}: not enrolled; `meadow client enroll --dir "
                f"{self.folder.parent} --server HOST:PORT --token - --ca-fingerprint F` does that"
            )
        try:
            about = json.loads(self._client.read_text())
            certificate_pem = self._certificate.read_bytes()
            key_pem = self._key.read_bytes()
            if not _belong_together(key_pem, certificate_pem):
                key_pem = self._complete_renewal(certificate_pem)
            ca_pem = self._require_issued(certificate_pem, str(about["name"]))
            return ClientIdentity(
                name=str(about["name"]),
                node_id=int(about["node_id"]),
                fleet_address=str(about["fleet_address"]),
                key_pem=key_pem,
                certificate_pem=certificate_pem,
                ca_pem=ca_pem,
            )
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            UnsupportedAlgorithm,
            IdentityError,
        ) as error:
            if isinstance(error, IdentityError) and str(self.folder) in str(error):
                raise
            raise IdentityError(f"{self.folder} cannot be used: {error}; enrol again") from error

    def _require_issued(self, certificate_pem: bytes, name: str) -> bytes:
        """Return the authority's certificate, after checking that it issued the client's own.

        Raises:
            IdentityError: one of the files was changed; gRPC would only report failing handshakes.
        """
        remedy = "it was damaged or replaced: restore it from a backup, or enrol again"
        try:
            ca_pem = verify_authority(self._ca.read_bytes())
        except IdentityError as error:
            raise IdentityError(f"{self._ca} cannot be used: {error}; {remedy}") from None
        try:
            issued = verify_issued(certificate_pem, ca_pem).name
        except IdentityError as error:
            raise IdentityError(f"{self._certificate} cannot be used: {error}; {remedy}") from None
        if issued != name:
            raise IdentityError(f"{self._certificate} is {issued}'s, not {name}'s; {remedy}")
        return ca_pem

    def shown(self) -> KeyPair:
        """Return the key and certificate in use, without changes, as the agent may be renewing.

        Raises:
            IdentityError: the files have no key that matches the certificate.
        """
        try:
            certificate_pem = self._certificate.read_bytes()
            for path in (self._key, self._next_key):
                if path.exists() and _belong_together(key := path.read_bytes(), certificate_pem):
                    return KeyPair(key_pem=key, certificate_pem=certificate_pem)
        except (OSError, ValueError, UnsupportedAlgorithm, IdentityError) as error:
            raise IdentityError(f"{self.folder} cannot be used: {error}; enrol again") from error
        raise IdentityError(f"{self._key} does not belong to {self._certificate}; enrol again")

    @property
    def ca_pem(self) -> bytes:
        """The authority that is trusted since enrolment."""
        return self._ca.read_bytes()

    def replace(self, other: IdentityFolder) -> ClientIdentity:
        """Replace another identity folder, taking its name."""
        shutil.rmtree(other.folder, ignore_errors=True)
        os.rename(self.folder, other.folder)
        sync_folder(other.folder.parent)
        return other.load()

    def begin_renewal(self, name: str) -> bytes:
        """Make the next key and return a request for its certificate."""
        return create_request(name, self._next_key)

    def finish_renewal(self, certificate_pem: bytes) -> None:
        """Replace the present certificate and key by the next ones.

        Raises:
            IdentityError: the certificate is for another key; nothing is changed.
        """
        if not _belong_together(self._next_key.read_bytes(), certificate_pem):
            raise IdentityError("the server sent a certificate for another key")
        write_file(self._certificate, certificate_pem)
        self._complete_renewal(certificate_pem)

    def _complete_renewal(self, certificate_pem: bytes) -> bytes:
        key_pem = self._next_key.read_bytes() if self._next_key.exists() else b""
        if not key_pem or not _belong_together(key_pem, certificate_pem):
            raise IdentityError(f"{self._key} does not belong to {self._certificate}; enrol again")
        write_file(self._key, key_pem, mode=0o600)
        os.unlink(self._next_key)
        return key_pem


def _belong_together(key_pem: bytes, certificate_pem: bytes) -> bool:
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    der = serialization.Encoding.DER
    key = read_key(key_pem).public_key()
    certified = read_certificate(certificate_pem).public_key()
    return key.public_bytes(der, spki) == certified.public_bytes(der, spki)
