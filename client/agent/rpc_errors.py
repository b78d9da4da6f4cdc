"""gRPC's errors become ours here, once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from ...errors import IdentityError, LimitError, MeadowError, ProtocolError, UnreachableError

__all__ = ["GoneError", "rpc_errors"]


class GoneError(ProtocolError):
    """The server no longer has, or no longer wants, what is asked for or sent."""


ON_CLOSED = "Cannot invoke RPC"
"""How gRPC's text begins where a channel is closed: it raises no error of its own for that."""

UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
"""How gRPC says that a server is not of the authority that is believed."""

_NO_FLEET = (
    "what answers there knows nothing of this call: it is another listener than the one that is meant "
    "(a server has one for enrolment and one for its fleet), or no Meadow server"
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
"""Everything else - a lost connection, a restart, a deadline - may go away by itself."""


@contextmanager
def rpc_errors(address: str) -> Iterator[None]:
    """Turn what gRPC raises in the block into the error tree.

    Raises:
        UnreachableError: the server did not answer; trying again later may help.
        IdentityError: it does not accept who we are.
        GoneError, LimitError, ProtocolError: it refuses what we ask.
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
    except ValueError as error:  # of a channel that was closed after the call was decided on
        if not str(error).startswith(ON_CLOSED):
            raise
        raise UnreachableError(f"{address}: hung up") from error


def _short(details: str) -> str:
    """Return the part of gRPC's text that a person can use: the last cause."""
    if UNTRUSTED in details:
        return (
            "what answers there has no certificate of this client's authority: is it the right "
            "server? If that was laid out anew, enrol again"
        )
    if (status := re.search(r"http2 header with status: ([0-9]{3})", details)) is not None:
        return (
            f"a web server or a proxy answers there, with the status {status[1]}; let the "
            "connection through as it is (TCP), or give the server's own port"
        )
    return details.replace("\n", " ").rpartition("; last error: ")[2][:300]
