"""Calls whose first message is read only after the caller is admitted, and within a time limit.

For a unary call, gRPC reads the request before it runs the handler, without a time limit, and keeps
a partly received one in memory. So every call here has a stream of requests, which is the same on
the wire, and its handler reads the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ...errors import ProtocolError, UnreachableError
from .peer_auth import Context
from .stream_limiter import Waits

__all__ = [
    "FIRST_MESSAGES_EACH_MAX",
    "FIRST_MESSAGES_MAX",
    "MESSAGE_WAIT_S",
    "FirstMessages",
    "parse",
    "unary_handler",
]

MESSAGE_WAIT_S = 20.0
FIRST_MESSAGES_MAX = 64
FIRST_MESSAGES_EACH_MAX = 16
"""Bound per caller."""
Admit = Callable[[Context], Awaitable[Hashable]]
"""Admits a call and returns its caller's id."""
Kind = TypeVar("Kind", bound=Message)


class FirstMessages:
    """Waits for the first messages of calls, within a bound for all callers and one for each.

    Beyond a bound, the oldest wait of the caller with the most waits is ended.
    """

    def __init__(
        self, count_max: int = FIRST_MESSAGES_MAX, each_max: int = FIRST_MESSAGES_EACH_MAX
    ) -> None:
        self._waits = Waits(count_max, each_max)

    async def next(
        self, requests: AsyncIterator[bytes], caller: Hashable, wait_s: float = MESSAGE_WAIT_S
    ) -> bytes:
        """Return the first message of a call.

        Raises:
            UnreachableError: it was not complete after `wait_s` seconds, or too many calls wait.
            ProtocolError: the call has no message.
        """
        try:
            async with asyncio.timeout(wait_s) as limit:
                self._waits.add(limit, caller)
                message = await anext(requests, None)
        except TimeoutError:
            text = f"no complete message arrived within {wait_s:.0f} s, or too many calls wait"
            raise UnreachableError(text) from None
        finally:
            self._waits.remove(limit)
        if message is None:
            raise ProtocolError("the call has no message")
        return message


def parse(kind: type[Kind], message: bytes) -> Kind:
    """Return a parsed message.

    Raises:
        ProtocolError: the bytes are not a message of this kind.
    """
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise ProtocolError(f"the message is not a {kind.DESCRIPTOR.name}: {error}") from None


def unary_handler(
    kind: type[Message],
    answer: Callable[[Any, Context], Awaitable[Message]],
    admit: Admit,
    first_messages: FirstMessages,
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the handler of a call with one request and one answer."""

    async def call(requests: AsyncIterator[bytes], context: Context) -> Message:
        whose = await admit(context)
        request = parse(kind, await first_messages.next(requests, whose))
        return await answer(request, context)

    return grpc.stream_unary_rpc_method_handler(call, response_serializer=_serialized)


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()
