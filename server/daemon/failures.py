"""Turns the errors of all calls into a gRPC status and a sentence.

Only the administrator gets the paths of the server's folder in an error of the disk; other callers
get a general sentence. An unexpected error is logged with its traceback; no caller gets its text.
"""

from __future__ import annotations

import errno
import inspect
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio

from ...errors import (
    AppError,
    ConfigError,
    DamageError,
    IdentityError,
    LimitError,
    MeadowError,
    ProtocolError,
    StoreError,
    UnreachableError,
)
from .peer_auth import Context

__all__ = ["answer_of", "service_of"]

LOG = logging.getLogger("meadow.server")
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Service: TypeAlias = "grpc.GenericRpcHandler[Any, Any]"
Answer = tuple[grpc.StatusCode, str]
Admit = Callable[[Context, str], Awaitable[None]]
"""Aborts the call of somebody who may not make it."""

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_SERVERS_DISK: Final = "the server cannot use its disk at present; try again later"
_DEFECT: Final = "the server failed at this call because of a defect; its log has the details"
_CODES: Final[dict[type[MeadowError], grpc.StatusCode]] = {
    LimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    AppError: grpc.StatusCode.INVALID_ARGUMENT,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    IdentityError: grpc.StatusCode.INVALID_ARGUMENT,
    ProtocolError: grpc.StatusCode.INVALID_ARGUMENT,
    UnreachableError: grpc.StatusCode.UNAVAILABLE,
    MeadowError: grpc.StatusCode.FAILED_PRECONDITION,
}
"""The first class that an error is an instance of decides."""


def service_of(
    name: str, handlers: Mapping[str, Handler], admit: Admit, *, for_admin: bool = False
) -> Service:
    """Return a service whose calls begin with `admit`, and end with a status and a sentence if they
    fail."""
    return grpc.method_handlers_generic_handler(
        f"meadow.v1.{name}",
        {
            call: _answering(handler, f"{name}.{call}", admit, for_admin)
            for call, handler in handlers.items()
        },
    )


def answer_of(error: Exception, call: str, *, for_admin: bool = False) -> Answer:
    """Return an error's status and sentence for the caller; log the details that it omits."""
    stored = isinstance(error, StoreError | sqlite3.Error) or (
        isinstance(error, OSError) and error.errno is not None
    )
    if stored:
        code, text = _of_a_disk(error)
        LOG.error("%s: %s", call, text)
        return (code, text) if for_admin else (grpc.StatusCode.UNAVAILABLE, _SERVERS_DISK)
    if isinstance(error, MeadowError):
        code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
        return code, str(error)
    LOG.error("%s", call, exc_info=error)
    return grpc.StatusCode.INTERNAL, _DEFECT


def _of_a_disk(error: Exception) -> Answer:
    text = str(error)
    if isinstance(error, OSError):
        text = f"{error.filename or 'the server'}: {error.strerror}"
    if isinstance(error, DamageError):
        return grpc.StatusCode.DATA_LOSS, text
    if _is_full(error):
        hint = "make room on the server's disk, then try again"
        return grpc.StatusCode.RESOURCE_EXHAUSTED, f"{text}; {hint}"
    if isinstance(error, StoreError) and error.__cause__ is None:  # its text has the remedy
        return grpc.StatusCode.INTERNAL, text
    return grpc.StatusCode.INTERNAL, f"{text}; check the server's disk and its folder's permissions"


def _is_full(error: BaseException | None) -> bool:
    """Return whether an error, or a cause of it, is a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        if isinstance(error, sqlite3.Error) and "disk is full" in str(error):
            return True
        error = error.__cause__
    return False


def _answering(handler: Any, call: str, admit: Admit, for_admin: bool) -> Handler:
    """Return a handler that admits its caller, and answers errors with `answer_of`."""
    assert handler.request_streaming, f"{call} would let gRPC wait for its message"
    kind = "stream_stream" if handler.response_streaming else "stream_unary"
    behaviour = getattr(handler, kind)

    async def end(error: Exception, context: Context) -> NoReturn:
        if isinstance(error, grpc.aio.BaseError):  # the call has already ended
            raise error
        await context.abort(*answer_of(error, call, for_admin=for_admin))
        raise AssertionError("abort always raises")

    async def one(requests: AsyncIterator[Any], context: Context) -> Any:
        try:
            await admit(context, call)
            return await behaviour(requests, context)
        except Exception as error:
            await end(error, context)

    async def many(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        try:
            await admit(context, call)
            async for answer in behaviour(requests, context):
                yield answer
        except Exception as error:
            await end(error, context)

    answering: Handler = handler._replace(
        **{kind: many if inspect.isasyncgenfunction(behaviour) else one}
    )
    return answering
