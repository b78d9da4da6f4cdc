"""The server's folder: its files, and how they are created.

server.toml      ports, limits, lifetimes            ca/            the authority (secret key)
admin.json       the administrator's identity        journal.sqlite the server's durable state
ca/admin-serial  the serial of its valid certificate ca/roles/      whose certificates are valid, too
audit/           who did what (`audit_log.py`)
spool/           tensors in transit                  runs/<id>/     the folder of a run
privacy.sqlite   the privacy ledger of all runs      ledger         which ledger that is
listening.json   the addresses in use while running  server.lock    one daemon at a time
notify.json      what each receiver was told last
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ...config.server_config import (
    ServerConfig,
    load_server_config,
    make_server_config,
    server_config_to_toml,
)
from ...errors import ConfigError, IdentityError, StoreError
from ...transport.authority import Authority
from ...transport.durable import make_folder, write_file
from ...transport.identity import (
    Role,
    fingerprint_of,
    identity_of,
    read_certificate,
    verify_authority,
)
from ...transport.keys import KeyPair, create_request, read_key, write_key
from ...transport.tokens import create_token
from ..journal.audit_log import AuditLog
from ..journal.conditions import Condition, standing
from ..journal.journal import Journal
from ..journal.site_table import TokenRow
from .roles import ADMIN_NAME, ROLE_WORDS, RoleFolder

__all__ = ["INVITATION_HOURS_MAX", "ROLE_DAYS", "AdminIdentity", "ServerFolder", "check_hours"]

ADMIN_DAYS = 3650.0
ADMIN_SERIAL = "ca/admin-serial"
INVITATION_HOURS_MAX = 24 * 366
ROLE_DAYS = 365.0
SERVER_DAYS = 90.0
LOOPBACK = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}


def check_hours(hours: float) -> float:
    """Return how long a token is to be valid.

    Raises:
        ConfigError: no token is valid for so long.
    """
    if not 0 < hours <= INVITATION_HOURS_MAX:
        raise ConfigError(f"hours must be above 0 and up to {INVITATION_HOURS_MAX}, not {hours:g}")
    return hours


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminIdentity:
    """A server's address, and the certificate and key of somebody who administers it."""

    address: str
    ca_pem: bytes
    certificate_pem: bytes
    key_pem: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> AdminIdentity:
        """Read an admin file.

        Raises:
            IdentityError: the file is missing or malformed.
        """
        try:
            fields = json.loads(path.read_text())
            pems = {k: fields[k].encode() for k in ("ca_pem", "certificate_pem", "key_pem")}
            return cls(address=str(fields["address"]), **pems)
        except FileNotFoundError:
            raise IdentityError(
                f"{path} does not exist; give --dir of a server made by `meadow server init`, "
                "or --admin FILE"
            ) from None
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise IdentityError(f"{path} is not an admin file: {error}") from None

    def write(self, path: Path) -> None:
        """Write the file, readable only for its owner.

        Raises:
            StoreError: the disk is full, or the folder does not take the file.
        """
        fields = {
            "address": self.address,
            "ca_pem": self.ca_pem.decode(),
            "certificate_pem": self.certificate_pem.decode(),
            "key_pem": self.key_pem.decode(),
        }
        write_file(path, json.dumps(fields, indent=1).encode(), mode=0o600)


class ServerFolder:
    """A server's folder."""

    def __init__(
        self, folder: Path, *, fleet_port: int | None = None, enroll_port: int | None = None
    ) -> None:
        """Read a server's folder; the arguments override the ports of server.toml.

        Raises:
            ConfigError: it is not a server's folder, or its server.toml is invalid.
            IdentityError: the authority's files are missing.
        """
        self.folder = folder.resolve()
        if not (self.folder / "server.toml").is_file():
            raise ConfigError(
                f"{folder} is not a server's folder; make one with "
                f"`meadow server init --dir {folder}`"
            )
        config = load_server_config(self.folder / "server.toml")
        ports = {"fleet_port": fleet_port, "enroll_port": enroll_port}
        given = {key: port for key, port in ports.items() if port is not None}
        self.config: ServerConfig = replace(config, **given)  # type: ignore[arg-type]
        try:
            self.authority = Authority(
                certificate_pem=(self.folder / "ca" / "certificate.pem").read_bytes(),
                key_pem=(self.folder / "ca" / "key.pem").read_bytes(),
            )
        except OSError as error:
            raise IdentityError(
                f"{error.filename}: {error.strerror}; without the authority's files this server "
                "has no identity: restore them from a backup"
            ) from None
        self._require_authority()
        self.roles = RoleFolder(self.folder)

    @classmethod
    def create(cls, folder: Path, *, host: str, now: datetime) -> ServerFolder:
        """Create a new server's folder: authority, journal, admin identity, server.toml.

        Raises:
            ConfigError: the folder has a server already, or `host` is not a name or address.
        """
        if (folder / "server.toml").exists():
            raise ConfigError(f"{folder} is a server's folder already; nothing was changed")
        values: dict[str, object] = {"hosts": [host]}
        if (listen := LOOPBACK.get(host.strip("[]"))) is not None:
            values["listen"] = listen
        config = make_server_config(values, where="--host")
        make_folder(folder)
        folder.chmod(0o700)
        for name in ("spool", "runs", "ca"):
            make_folder(folder / name)
        authority = Authority.create(now=now)
        write_key(folder / "ca" / "key.pem", authority.key_pem)
        write_file(folder / "ca" / "certificate.pem", authority.certificate_pem)
        Journal(folder / "journal.sqlite").close()
        _make_admin(folder, authority, config, now)
        write_file(folder / "server.toml", server_config_to_toml(config).encode())
        return cls(folder)

    def _require_authority(self) -> None:
        """Check that the authority's files are intact and belong together.

        Raises:
            IdentityError: they do not, so that no client would accept this server.
        """
        key = read_key(self.authority.key_pem).public_key()
        try:
            pem = verify_authority(self.authority.certificate_pem)
            self.authority = replace(self.authority, certificate_pem=pem)
            if read_certificate(self.authority.certificate_pem).public_key() != key:
                raise IdentityError("it does not belong to key.pem beside it")
        except IdentityError as error:
            path = self.folder / "ca" / "certificate.pem"
            raise IdentityError(
                f"{path} cannot be used: {error}; restore it from a backup"
            ) from None

    def renew_admin(self, now: datetime) -> Path:
        """Write an admin file with a new key, which replaces the old one; return its path."""
        with self.audited("server renew-admin"):
            path = _make_admin(self.folder, self.authority, self.config, now)
            with closing(Journal(self.folder / "journal.sqlite")) as journal:
                journal.events.record(0, "admin_renewed", "{}", now_s=now.timestamp())
        return path

    def add_role(self, name: str, word: str, path: Path, *, days: float, now: datetime) -> Path:
        """Write a file like admin.json for somebody with a role, with a new key; return its path.

        Raises:
            ConfigError: the name has a role already, or the file exists.
            IdentityError: it cannot be a name.
        """
        self.roles.require_free(name)
        if path.exists():
            raise ConfigError(f"{path} exists; give another file with --out")
        role, listening = ROLE_WORDS[word], self.listening()
        address = self.config.fleet_advertised(self.config.fleet_port)
        if "fleet" in listening and not self.config.fleet_address:
            address = listening["fleet"]
        with self.audited("server role add", name=name, given=word, days=int(days)):
            identity = _issue(
                self.authority,
                self.folder / "ca",
                address,
                name=name,
                role=role,
                days=days,
                now=now,
            )
            identity.write(path)
            self.roles.add(identity_of(identity.certificate_pem))
        return path

    def revoke_role(self, name: str) -> None:
        """Make the certificate of somebody with a role invalid, at once.

        Raises:
            MeadowError: nobody of this name has one, or it is the folder's own administrator.
        """
        with self.audited("server role revoke", name=name):
            self.roles.revoke(name)

    def admin_serial(self) -> str:
        """See `RoleFolder.admin_serial`."""
        return self.roles.admin_serial()

    def audit_log(self, clock: Callable[[], float] = time.time) -> AuditLog:
        """Return the log of all actions."""
        genesis = fingerprint_of(self.authority.certificate_pem)
        return AuditLog(self.folder / "audit", genesis=genesis, clock=clock)

    def audited(self, call: str, **what: object) -> AbstractContextManager[None]:
        """Record an action of a command that was called on the server's machine."""
        return self.audit_log().action(who=_user(), role="local", call=call, what=what)

    def invite(
        self, client: str, *, hours: float, now_s: float, tags: Collection[str] = ()
    ) -> tuple[str, int]:
        """Create a one-time token for a client; return it and the client's node id.

        The client's older tokens become void; `tags` replace its tags, where there are any.

        Raises:
            ConfigError: the hours are none that a token is valid for.
        """
        check_hours(hours)
        token, token_hash = create_token()
        recorded = self.audited("server token", client=client, hours=f"{hours:g}")
        with recorded, closing(Journal(self.folder / "journal.sqlite")) as journal:
            node_id = journal.sites.invite(
                client, token_hash, now_s=now_s, expires_at_s=now_s + hours * 3600.0
            )
            if tags:
                journal.sites.tag(client, tags)
        return token, node_id

    def tokens(self) -> list[TokenRow]:
        """Return the tokens that were neither redeemed nor revoked, ordered by client."""
        with closing(Journal(self.folder / "journal.sqlite")) as journal:
            return journal.sites.tokens()

    def revoke_token(self, client: str, *, now_s: float) -> bool:
        """Revoke a client's token. False if it has none."""
        recorded = self.audited("server revoke-token", client=client)
        with recorded, closing(Journal(self.folder / "journal.sqlite")) as journal:
            return journal.sites.revoke_token(client, now_s=now_s)

    def events(self) -> list[sqlite3.Row]:
        """Return the server's events (id, at_s, kind, json), the oldest first."""
        with closing(Journal(self.folder / "journal.sqlite")) as journal:
            return journal.events.after(0)

    def conditions(self) -> dict[Condition, dict[str, Any]]:
        """Return the conditions that hold, as the daemon has seen them last, with their details."""
        found, notify = standing(self.events()), self.config.notify
        told = {"url": notify and notify.url, "command": notify and notify.command}
        gone = [each for each in found if each[0] == "notify_failed" and not told.get(each[1])]
        return {each: detail for each, detail in found.items() if each not in gone}

    def admin(self) -> AdminIdentity:
        """Return the administrator's identity, with the address that is in use now."""
        identity = AdminIdentity.read(self.folder / "admin.json")
        listening = self.listening()
        return replace(identity, address=listening["fleet"]) if listening else identity

    def listening(self) -> dict[str, str]:
        """Return the addresses that a running daemon listens on; empty if none runs."""
        try:
            return dict(json.loads((self.folder / "listening.json").read_text()))
        except (OSError, ValueError):
            return {}

    def enroll_advertised(self) -> str:
        """Return the address for enrolment, with the port of a running daemon."""
        listening, config = self.listening(), self.config
        if "enroll" in listening and not config.enroll_address:
            return listening["enroll"]
        return config.enroll_advertised(config.enroll_port)

    def announce(self, addresses: dict[str, str]) -> None:
        """Write the addresses in use to listening.json."""
        write_file(self.folder / "listening.json", json.dumps(addresses).encode(), fsync=False)

    def retract(self) -> None:
        """Delete listening.json, as the daemon is ending."""
        (self.folder / "listening.json").unlink(missing_ok=True)

    def server_pair(self, now: datetime) -> KeyPair:
        """Return a new key and certificate for the listeners."""
        return self.authority.issue_server(self.config.names, days=SERVER_DAYS, now=now)

    def lock(self) -> Callable[[], None]:
        """Lock the folder for this daemon; return a function that unlocks it.

        Raises:
            StoreError: another daemon runs in this folder.
        """
        fd = os.open(self.folder / "server.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise StoreError(f"another server already runs in {self.folder}") from None
        return lambda: os.close(fd)


def _make_admin(folder: Path, authority: Authority, config: ServerConfig, now: datetime) -> Path:
    address, path = config.fleet_advertised(config.fleet_port), folder / "admin.json"
    identity = _issue(
        authority, folder, address, name=ADMIN_NAME, role="admin", days=ADMIN_DAYS, now=now
    )
    identity.write(path)
    serial = identity_of(identity.certificate_pem).serial
    write_file(folder / ADMIN_SERIAL, serial.encode())
    return path


def _issue(
    authority: Authority,
    folder: Path,
    address: str,
    *,
    name: str,
    role: Role,
    days: float,
    now: datetime,
) -> AdminIdentity:
    """Return a new key and its certificate; the key is in no file afterwards."""
    key_path = folder / f"{name}-key.pem"
    key_path.unlink(missing_ok=True)  # left by a killed attempt
    request = create_request(name, key_path)
    key_pem = key_path.read_bytes()
    key_path.unlink()
    pem = authority.issue_client(request, name=name, role=role, now=now, days=days)
    return AdminIdentity(
        address=address, ca_pem=authority.certificate_pem, certificate_pem=pem, key_pem=key_pem
    )


def _user() -> str:
    """Return the name of this process's user at the system."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
