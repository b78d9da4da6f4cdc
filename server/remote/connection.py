"""An administrator's connection to a server: gRPC with the administrator's certificate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import grpc

from ...errors import ConfigError, IdentityError, MeadowError, ProtocolError, UnreachableError
from ...transport.fleet_pb2_grpc import AdminStub
from ...transport.keys import KeyPair
from ...transport.proxy import proxy_options
from ...transport.reach import why_not_reached
from ...transport.tls import channel_credentials
from ..daemon.server_dir import AdminIdentity, ServerFolder

__all__ = ["admin_identity", "admin_stub", "connected", "translated"]

CONNECT_S = 10.0
MESSAGE_BYTES_MAX = 16 << 20

_SERVERS_OWN = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DATA_LOSS,
)
"""Whose details are a sentence of the server's own."""


@contextmanager
def admin_stub(folder: Path | None, admin: Path | None) -> Iterator[AdminStub]:
    """Connect as administrator; gRPC's errors become Meadow's.

    Raises:
        ConfigError: neither or both of --dir and --admin are given.
        UnreachableError: no server answers there.
        MeadowError: the server refuses, in its own words.
    """
    identity = admin_identity(folder, admin)
    with connected(identity) as stub, translated(identity.address):
        yield stub


def admin_identity(folder: Path | None, admin: Path | None) -> AdminIdentity:
    """Return the identity in an admin file, or of the administrator of a server's folder.

    Raises:
        ConfigError: neither or both are given.
        IdentityError: the file is missing or malformed.
    """
    if (folder is None) == (admin is None):
        raise ConfigError("give either --dir (the server's folder) or --admin (an admin file)")
    if admin is not None:
        return AdminIdentity.read(admin)
    assert folder is not None
    return ServerFolder(folder).admin()


@contextmanager
def connected(identity: AdminIdentity) -> Iterator[AdminStub]:
    """Connect to a server; calls raise gRPC's errors, which `translated` makes Meadow's.

    Raises:
        UnreachableError: no server answers there.
    """
    pair = KeyPair(key_pem=identity.key_pem, certificate_pem=identity.certificate_pem)
    credentials = channel_credentials(identity.ca_pem, pair)
    options = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        *proxy_options(identity.address),
    ]
    with grpc.secure_channel(identity.address, credentials, options=options) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_S)
        except grpc.FutureTimeoutError:
            found = why_not_reached(identity.address, identity.ca_pem, now=datetime.now(UTC))
            raise UnreachableError(
                f"no server answers at {identity.address}; is `meadow server start` running?"
                + (f" {found}" if found else "")
            ) from None
        yield AdminStub(channel)


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Make gRPC's errors of the block Meadow's.

    Raises:
        UnreachableError: the connection was lost.
        MeadowError: the server refuses, in its own words.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise _meadow_error(error, address) from None


def _meadow_error(error: grpc.RpcError, address: str) -> MeadowError:
    assert isinstance(error, grpc.Call)
    code, details = error.code(), error.details() or ""
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return IdentityError(details)
    if code == grpc.StatusCode.UNAVAILABLE:
        return UnreachableError(f"the connection to {address} was lost: {details}")
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return ConfigError(details)
    if code in _SERVERS_OWN:
        return MeadowError(details)
    return ProtocolError(f"{code.name}: {details}")
