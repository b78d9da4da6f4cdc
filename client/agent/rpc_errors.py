"""Translates gRPC's errors into Meadow's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from ...errors import IdentityError, LimitError, MeadowError, ProtocolError, UnreachableError

__all__ = ["GoneError", "rpc_errors"]


class GoneError(ProtocolError):
    """The server no longer has what was requested, or no longer wants what was sent."""


ON_CLOSED = "Cannot invoke RPC"
"""The start of gRPC's message for a closed channel, which has no exception type of its own."""

UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
"""gRPC's message if the server's certificate is not of the trusted authority."""

_NO_FLEET = (
    "the listener at this address does not know this call: it is another one than intended (a server "
    "has one for enrolment and one for its fleet), or not a Meadow server"
)

_KINDS: dict[grpc.StatusCode, type[MeadowError]] = {
    grpc.StatusCode.UNAUTHENTICATED: IdentityError,
    grpc.StatusCode.PERMISSION_DENIED: IdentityError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: LimitError,
    grpc.StatusCode.NOT_FOUND: GoneError,
    grpc.StatusCode.INVALID_ARGUMENT: ProtocolError,
    grpc.StatusCode.FAILED_PRECONDITION: ProtocolError,
    grpc.StatusCode.OUT_OF_RANGE: ProtocolError,
    grpc.StatusCode.UNIMPLEMENTED: ProtocolError,
}
"""All other errors - a lost connection, a restart, a deadline - may be temporary."""


@contextmanager
def rpc_errors(address: str) -> Iterator[None]:
    """Translate gRPC's exceptions in the block.

    Raises:
        UnreachableError: the server did not answer; a later attempt may succeed.
        IdentityError: the server does not accept this client's identity.
        GoneError, LimitError, ProtocolError: the server refuses the request.
    """
    try:
        yield
    except grpc.RpcError as error:
        code, details = error.code(), error.details() or ""
        kind = _KINDS.get(code, UnreachableError)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            details = f"{address}: {_NO_FLEET}"
        if kind is UnreachableError:
            details = f"{address}: {_short(details) or code.name.lower()}"
        raise kind(details) from error
    except ValueError as error:  # the channel was closed before the call
        if not str(error).startswith(ON_CLOSED):
            raise
        raise UnreachableError(f"{address}: hung up") from error


def _short(details: str) -> str:
    """Return the part of gRPC's message that is useful to people: the last cause."""
    if UNTRUSTED in details:
        return (
            "the server there has no certificate of this client's authority: is it the right "
            "server? If it was set up anew, enrol again"
        )
    if (status := re.search(r"http2 header with status: ([0-9]{3})", details)) is not None:
        return (
            f"a web server or a proxy answers there, with the status {status[1]}; let the "
            "connection through as it is (TCP), or give the server's own port"
        )
    return details.replace("\n", " ").rpartition("; last error: ")[2][:300]
