"""A relay's folder: a server's, and in `above/` that of a client of the server above it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from ..client.owner.identity_folder import ClientIdentity
from ..client.tools.enroll import enroll
from ..errors import ConfigError
from ..randomness.entropy import system_entropy
from ..server.daemon.server_dir import ServerFolder
from ..server.journal.journal import Journal
from ..transport.durable import write_file
from ..transport.relaying import leaf_ids_from

__all__ = ["ABOVE", "join", "secret_in"]

ABOVE = "above"
SECRET_FILE = "message-ids.key"
SECRET_BYTES = 32


def join(
    folder: Path, *, server: str, token: str, ca_fingerprint: str, host: str, now: datetime
) -> ClientIdentity:
    """Enrol a relay at the server above it, and lay out its folder where there is none.

    Raises:
        ConfigError: `host` is wrong, relays would be too deep, or the folder has clients of another
            server.
        UnreachableError, IdentityError, StoreError: as `client.tools.enroll.enroll`.
    """
    if not (folder / "server.toml").exists():
        ServerFolder.create(folder, host=host, now=now)
    identity = enroll(folder / ABOVE, server=server, token=token, ca_fingerprint=ca_fingerprint)
    first = leaf_ids_from(identity.node_id)
    if first is None:
        raise ConfigError(
            f"{identity.name} would be too far down: node ids below it (node {identity.node_id}) would be too "
            "long; enrol it at a server or relay nearer to the top, two levels of relays always fit"
        )
    journal = Journal(folder / "journal.sqlite")
    try:
        if not journal.sites.number_from(first):
            raise ConfigError(
                f"{folder} has clients that are numbered below another server; lay out a relay in a new "
                "folder, and invite them there"
            )
    finally:
        journal.close()
    return identity


def secret_in(folder: Path) -> bytes:
    """Return the key of a relay's message ids, which is created at the first call."""
    file = folder / SECRET_FILE
    if not file.exists():
        write_file(file, system_entropy(SECRET_BYTES), mode=0o600)
    return file.read_bytes()
