"""Who may administer a server, by certificates that its authority has issued.

A certificate has its holder's name and role, and is valid only while a file of the server's folder
has its serial: `ca/roles/NAME`, or `ca/admin-serial` for the folder's own administrator. The daemon
reads that file at every call, so a revocation holds at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from ...errors import ConfigError, IdentityError, MeadowError, StoreError
from ...transport.durable import make_folder, sync_folder, write_file
from ...transport.identity import Identity, Role, check_client_name

__all__ = ["ADMIN_NAME", "ROLE_WORDS", "RoleEntry", "RoleFolder"]

ADMIN_NAME: Final = "admin"
"""The administrator whose file is in the server's folder."""
ROLE_WORDS: Final[dict[str, Role]] = {
    "viewer": "viewer",
    "operator": "operator",
    "administrator": "admin",
}
"""The roles as commands name them, and as certificates do."""
_REPLACED: Final = (
    "this administrator's certificate was replaced; use the admin.json of the server's folder"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleEntry:
    """A certificate that is valid: its holder, role and serial, and when it expires."""

    name: str
    role: str
    serial: str
    until_s: float


class RoleFolder:
    """The valid certificates of a server's administrators, operators and viewers."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the server's."""
        self._folder = folder / "ca" / "roles"
        self._admin_serial = folder / "ca" / "admin-serial"

    def add(self, identity: Identity) -> None:
        """Make a new certificate valid.

        Raises:
            ConfigError: its name has a valid certificate already.
            StoreError: the disk is full or fails.
        """
        self.require_free(identity.name)
        entry = RoleEntry(
            name=identity.name,
            role=identity.role,
            serial=identity.serial,
            until_s=identity.not_after.timestamp(),
        )
        make_folder(self._folder)
        write_file(self._folder / identity.name, json.dumps(asdict(entry)).encode())

    def require_free(self, name: str) -> None:
        """Check that a name may be given a certificate.

        Raises:
            ConfigError: it is the folder's own administrator, or has a valid certificate.
            IdentityError: it cannot be a name.
        """
        if check_client_name(name) == ADMIN_NAME:
            raise ConfigError(
                f"{ADMIN_NAME!r} is the administrator of the server's folder, whose file "
                "`meadow server renew-admin` makes; give another name"
            )
        if (self._folder / name).exists():
            raise ConfigError(
                f"{name!r} has a role already; `meadow server role revoke {name}` ends it"
            )

    def revoke(self, name: str) -> None:
        """Make a certificate invalid, durably.

        Raises:
            MeadowError: nobody of this name has a role, or it is the folder's own administrator.
        """
        if check_client_name(name) == ADMIN_NAME:
            raise MeadowError(
                f"{ADMIN_NAME!r} is the administrator of the server's folder; `meadow server "
                "renew-admin` makes a new admin.json, and every copy of the old one is refused"
            )
        try:
            (self._folder / name).unlink()
            sync_folder(self._folder)
        except FileNotFoundError:
            raise MeadowError(
                f"{name!r} has no role here; `meadow server role list` shows who has"
            ) from None
        except OSError as error:
            raise StoreError(f"{error.filename}: {error.strerror}") from error

    def entries(self) -> Iterator[RoleEntry]:
        """Yield all valid certificates by name, but that of the folder's own administrator.

        Raises:
            StoreError: a file of one cannot be read.
        """
        names = sorted(path.name for path in self._folder.glob("[!.]*"))
        yield from (entry for name in names if (entry := self._entry(name)) is not None)

    def admin_serial(self) -> str:
        """Return the serial number of the valid certificate of the folder's own administrator.

        Raises:
            StoreError: the file is missing or cannot be read.
        """
        try:
            return self._admin_serial.read_text()
        except OSError as error:
            raise StoreError(
                f"{self._admin_serial} cannot be read ({error.strerror}); `meadow server "
                "renew-admin` writes it and admin.json again"
            ) from error

    def check(self, identity: Identity, now: datetime) -> None:
        """Check that a certificate, which TLS has verified, is valid now.

        Raises:
            IdentityError: it was revoked or replaced, or has expired.
            StoreError: the server's file about it cannot be read.
        """
        identity.check(now, role=identity.role)
        if identity.name == ADMIN_NAME:
            if identity.role != "admin" or identity.serial != self.admin_serial():
                raise IdentityError(_REPLACED)
            return
        entry = self._entry(identity.name)
        if entry is None or (entry.role, entry.serial) != (identity.role, identity.serial):
            raise IdentityError(
                f"this certificate of {identity.name!r} was revoked; ask an administrator of the "
                "server for a new one"
            )

    def _entry(self, name: str) -> RoleEntry | None:
        path = self._folder / name
        try:
            entry = RoleEntry(**json.loads(path.read_bytes()))
            float(entry.until_s)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(
                f"{path} cannot be read; `meadow server role revoke {name}` removes it"
            ) from error
        return entry
