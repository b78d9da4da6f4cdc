"""Which machines of a site may train together: DIR/hosts of the client that leads.

authority.pem, authority-key.pem   the site's own authority, for nothing else
leader.pem, leader-key.pem         the leader's certificate and key
members/NAME.pem                   the certificate of each machine that was invited
status.json                        who is there, written by the training process

A machine whose file is removed, or that is invited again, is refused with its old certificate.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from ...errors import ConfigError, IdentityError
from ...transport.authority import Authority
from ...transport.durable import make_folder, write_file
from ...transport.identity import (
    Identity,
    check_client_name,
    fingerprint_of,
    identity_of,
    verify_issued,
)
from ...transport.keys import KeyPair, create_request, read_key, write_key

__all__ = ["Membership", "Pass"]

MEMBER_DAYS = 730.0
"""How long a machine's certificate is valid; then it is invited again."""
LEADER_DAYS = 3653.0
PASS_CHARS_MAX = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a machine shows to the leader, and knows it by: a file, which is a secret."""

    name: str
    certificate_pem: bytes
    key_pem: bytes = field(repr=False)
    ca_pem: bytes

    def write(self, file: Path) -> None:
        """Write it, readable for its owner only.

        Raises:
            StoreError: the disk does not take it.
        """
        about = {
            "name": self.name,
            "certificate": self.certificate_pem.decode(),
            "key": self.key_pem.decode(),
            "authority": self.ca_pem.decode(),
        }
        write_file(file, (json.dumps(about, indent=1) + "\n").encode(), mode=0o600)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read one.

        Raises:
            ConfigError: it cannot be read, or is none.
        """
        remedy = "`meadow client rank --invite NAME`, on the machine that leads, makes one"
        try:
            with file.open(encoding="ascii") as opened:
                about = json.loads(opened.read(PASS_CHARS_MAX))
            found = cls(
                name=check_client_name(about["name"]),
                certificate_pem=about["certificate"].encode(),
                key_pem=about["key"].encode(),
                ca_pem=about["authority"].encode(),
            )
            read_key(found.key_pem)
            verify_issued(found.certificate_pem, found.ca_pem)
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}; {remedy}") from None
        except (ValueError, TypeError, KeyError, AttributeError, IdentityError) as error:
            raise ConfigError(f"{file} is no machine's pass: {error}; {remedy}") from None
        return found

    @property
    def identity(self) -> Identity:
        """The identity in its certificate."""
        return identity_of(self.certificate_pem)


class Membership:
    """The folder `hosts` of the client that leads."""

    def __init__(self, directory: Path) -> None:
        self.folder = directory / "hosts"
        self._authority = self.folder / "authority.pem"
        self._authority_key = self.folder / "authority-key.pem"
        self.certificate = self.folder / "leader.pem"
        self.key = self.folder / "leader-key.pem"
        self._members = self.folder / "members"
        self._status = self.folder / "status.json"

    @property
    def names(self) -> list[str]:
        """The machines that were invited."""
        return sorted(file.stem for file in self._members.glob("*.pem"))

    def invite(self, name: str, *, now: datetime) -> Pass:
        """Return a new pass for a machine; one that it had is void.

        Raises:
            IdentityError: the name is not possible.
            StoreError: the folder cannot be written.
        """
        check_client_name(name)
        authority = self._made(now)
        key_file = self._members / f"{name}.key"
        try:
            request = create_request(name, key_file)
            pem = authority.issue_client(request, name=name, now=now, days=MEMBER_DAYS)
            key_pem = key_file.read_bytes()
        finally:
            key_file.unlink(missing_ok=True)  # it leaves with the pass, and is nowhere else
        write_file(self._members / f"{name}.pem", pem)
        return Pass(
            name=name, certificate_pem=pem, key_pem=key_pem, ca_pem=authority.certificate_pem
        )

    def tls(self) -> ssl.SSLContext:
        """Return what the leader listens with: every peer shows a certificate of this authority.

        Raises:
            ConfigError: no machine was invited yet.
        """
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=self._authority.read_text())
            context.load_cert_chain(self.certificate, self.key)
            context.num_tickets = 0  # every connection shows its certificate anew
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{self.folder} has no certificates for other hosts ({error}); "
                f"`meadow client rank --invite NAME --dir {self.folder.parent}` makes them, or remove "
                "device.hosts"
            ) from None
        return context

    def check(self, certificate_pem: bytes, *, now: datetime) -> str:
        """Return the name of the machine that shows this certificate.

        Raises:
            IdentityError: it was not invited, or invited again since, or is out of date.
        """
        shown = identity_of(certificate_pem)
        shown.check(now, role="client")
        try:
            known = (self._members / f"{shown.name}.pem").read_bytes()
        except OSError:
            raise IdentityError(f"host {shown.name!r} is not invited any more") from None
        if fingerprint_of(known) != shown.fingerprint:
            raise IdentityError(f"host {shown.name!r} was invited again and shows its old pass")
        return shown.name

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Write down who is there."""
        write_file(self._status, json.dumps(status).encode(), fsync=False)

    def status(self) -> dict[str, Any]:
        """Return who was there when something last changed; nothing if nobody ever was."""
        try:
            found = json.loads(self._status.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _made(self, now: datetime) -> Authority:
        """Return the authority, which the first invitation makes."""
        make_folder(self.folder, mode=0o700)
        make_folder(self._members)
        if not self._authority_key.exists() or not self._authority.exists():
            made = Authority.create(now=now, name="Meadow hosts of one site")
            write_key(self._authority_key, made.key_pem)
            write_file(self._authority, made.certificate_pem)
            self.certificate.unlink(missing_ok=True)
        authority = Authority(
            certificate_pem=self._authority.read_bytes(), key_pem=self._authority_key.read_bytes()
        )
        if not self.certificate.exists():
            pair: KeyPair = authority.issue_server((), now=now, days=LEADER_DAYS)
            write_key(self.key, pair.key_pem)
            write_file(self.certificate, pair.certificate_pem)
        return authority
