"""What is answered to a call that fails: one place for every call of every service.

A handler raises, and here it becomes a gRPC status and a sentence. The administrator is told what of the
server's folder failed; clients and strangers only that it did, as paths are none of their business. What nobody
expected is in the log with its trace, and its text is told to nobody.
"""

from __future__ import annotations

import errno
import inspect
import logging
import sqlite3
from collections.abc import AsyncIterator, Mapping
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

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_SERVERS_DISK: Final = "the server cannot use its disk at present; try again later"
_DEFECT: Final = "the server failed at this call, by a defect of its own: its log says how"
_CODES: Final[dict[type[MeadowError], grpc.StatusCode]] = {
    LimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    AppError: grpc.StatusCode.INVALID_ARGUMENT,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    IdentityError: grpc.StatusCode.INVALID_ARGUMENT,
    ProtocolError: grpc.StatusCode.INVALID_ARGUMENT,
    UnreachableError: grpc.StatusCode.UNAVAILABLE,
    MeadowError: grpc.StatusCode.FAILED_PRECONDITION,
}
"""The first that an error is one of counts."""


def service_of(name: str, handlers: Mapping[str, Handler], *, for_admin: bool = False) -> Service:
    """Return a service whose calls, however they fail, end with a status and a sentence."""
    return grpc.method_handlers_generic_handler(
        f"meadow.v1.{name}",
        {
            call: _answering(handler, f"{name}.{call}", for_admin)
            for call, handler in handlers.items()
        },
    )


def answer_of(error: Exception, call: str, *, for_admin: bool = False) -> Answer:
    """Return what a caller is told of an error, and write down what it is not told."""
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
    if isinstance(error, StoreError) and error.__cause__ is None:  # it says what to do
        return grpc.StatusCode.INTERNAL, text
    return grpc.StatusCode.INTERNAL, f"{text}; look at the server's disk and its folder's rights"


def _is_full(error: BaseException | None) -> bool:
    """Whether an error, or what it was made of, says that there is no room."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        if isinstance(error, sqlite3.Error) and "disk is full" in str(error):
            return True
        error = error.__cause__
    return False


def _answering(handler: Any, call: str, for_admin: bool) -> Handler:
    """Return a handler that answers whatever its behaviour raises; what it takes and gives stays."""
    assert handler.request_streaming, f"{call} would have gRPC wait for its message"
    kind = "stream_stream" if handler.response_streaming else "stream_unary"
    behaviour = getattr(handler, kind)

    async def end(error: Exception, context: Context) -> NoReturn:
        if isinstance(error, grpc.aio.BaseError):  # the call has ended, with a status or without
            raise error
        await context.abort(*answer_of(error, call, for_admin=for_admin))
        raise AssertionError("abort always raises")

    async def one(requests: AsyncIterator[Any], context: Context) -> Any:
        try:
            return await behaviour(requests, context)
        except Exception as error:
            await end(error, context)

    async def many(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        try:
            async for answer in behaviour(requests, context):
                yield answer
        except Exception as error:
            await end(error, context)

    answering: Handler = handler._replace(
        **{kind: many if inspect.isasyncgenfunction(behaviour) else one}
    )
    return answering
