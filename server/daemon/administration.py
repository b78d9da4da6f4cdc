"""The service `Admin`: its calls are admitted by the table of routes, read within a time limit, and
recorded in the audit log. What they do is in `admin.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ...transport import fleet_pb2 as pb
from ...transport.address import caller_of
from ...transport.identity import peer_identity
from .audit_trail import AuditTrail, Ended, summary_of
from .calls import FirstMessages, parse
from .peer_auth import Callers, Context
from .routes import ROUTES

__all__ = ["Administration"]

ADMITTED_EVERY_S = 2.0
"""How often a silent stream's caller is admitted again."""


class Administration:
    """Makes the handlers of all calls of `Admin`."""

    def __init__(
        self, servicer: object, callers: Callers, first_messages: FirstMessages, audit: AuditTrail
    ) -> None:
        """Each call is a method of `servicer`."""
        self._servicer = servicer
        self._callers = callers
        self._first_messages = first_messages
        self._audit = audit

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return the handlers of these calls."""
        methods = pb.DESCRIPTOR.services_by_name["Admin"].methods
        return {method.name: self._handler(method) for method in methods}

    def _handler(self, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        kind, call = GetMessageClass(method.input_type), f"Admin.{method.name}"
        behaviour: Callable[..., Any] = getattr(self._servicer, method.name)

        async def one(requests: AsyncIterator[bytes], context: Context) -> Message:
            first = await self._first(kind, requests, context)
            given: Any = first
            if method.client_streaming:
                given = self._following(kind, first, requests, context, call)
            async with self._recorded(first, context, call) as ended:
                answer: Message = await behaviour(given, context)
                ended(summary_of(answer))
            return answer

        async def many(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Message]:
            first = await self._first(kind, requests, context)

            async def admit() -> object:
                return await self._callers.admin(context, call)

            answers = _while_admitted(behaviour(first, context), admit)
            async with self._recorded(first, context, call), aclosing(answers):
                async for answer in answers:
                    yield answer

        if method.server_streaming:
            return grpc.stream_stream_rpc_method_handler(many, response_serializer=_serialized)
        return grpc.stream_unary_rpc_method_handler(one, response_serializer=_serialized)

    async def _first(
        self, kind: type[Message], requests: AsyncIterator[bytes], context: Context
    ) -> Message:
        whose = peer_identity(context.auth_context()).serial
        return parse(kind, await self._first_messages.next(requests, whose))

    async def _following(
        self,
        kind: type[Message],
        first: Message,
        requests: AsyncIterator[bytes],
        context: Context,
        call: str,
    ) -> AsyncIterator[Message]:
        """Yield all requests of a call; after the last, its caller is admitted again."""
        yield first
        async for data in requests:
            yield parse(kind, data)
        await self._callers.admin(context, call)

    @asynccontextmanager
    async def _recorded(
        self, request: Message, context: Context, call: str
    ) -> AsyncIterator[Ended]:
        identity = peer_identity(context.auth_context())
        fields: dict[str, Any] = {
            "who": identity.name,
            "role": identity.role,
            "call": call,
            "what": summary_of(request),
            "address": caller_of(context.peer()),
        }
        if not ROUTES[call].is_action:
            await self._audit.read(**fields)
            yield lambda result: None
            return
        async with self._audit.action(**fields) as ended:
            try:
                yield ended
            except grpc.aio.AbortError:
                ended({"reason": context.details()})
                raise


async def _while_admitted(
    answers: AsyncGenerator[Message, None], admit: Callable[[], Awaitable[object]]
) -> AsyncGenerator[Message, None]:
    """Yield a call's answers; before each, and while there is none, its caller is admitted again."""
    coming: asyncio.Future[Message | None] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(anext(answers, None))
            while not (await asyncio.wait({coming}, timeout=ADMITTED_EVERY_S))[0]:
                await admit()
            if (answer := coming.result()) is None:
                return
            await admit()
            yield answer
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            await asyncio.wait({coming})
        await answers.aclose()


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()
