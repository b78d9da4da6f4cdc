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
CROWDED_WAIT_S = 5.0
"""How long a first message may take while other callers wait for their turn."""
Admit = Callable[[Context], Awaitable[Hashable]]
"""Admits a call and returns its caller's id."""
Kind = TypeVar("Kind", bound=Message)


class FirstMessages:
    """Waits for the first messages of calls, within a bound for all callers and one for each.

    Beyond a bound, the oldest wait of the caller with the most waits is ended. Where none has more than
    one, as when thousands of clients return at once, a caller's call waits for its turn, unread.
    """

    def __init__(
        self,
        count_max: int = FIRST_MESSAGES_MAX,
        each_max: int = FIRST_MESSAGES_EACH_MAX,
        *,
        in_turn: bool = True,
    ) -> None:
        """Not `in_turn`, for callers who may be anybody, the oldest wait is ended then too."""
        self._waits = Waits(count_max, each_max)
        self._in_turn = in_turn
        self._queue: dict[Hashable, tuple[asyncio.Timeout, asyncio.Future[bool]]] = {}
        """The calls that wait for their turn, one for each caller: the result says whether it came."""

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
                if self._in_turn and self._waits.is_shared and caller not in self._waits:
                    await self._turn(limit, caller)
                else:
                    self._waits.add(limit, caller)
                message = await anext(requests, None)
        except TimeoutError:
            text = f"no complete message arrived within {wait_s:.0f} s, or too many calls wait"
            raise UnreachableError(text) from None
        finally:
            self._waits.remove(limit)
            self._give_turn()
        if message is None:
            raise ProtocolError("the call has no message")
        return message

    async def _turn(self, limit: asyncio.Timeout, caller: Hashable) -> None:
        """Wait for a place, while all are taken by callers with one each.

        Raises:
            TimeoutError: the caller has made another call meanwhile.
        """
        _, earlier = self._queue.pop(caller, (None, None))
        if earlier is not None and not earlier.done():
            earlier.set_result(False)
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue[caller] = limit, turn
        self._waits.end_within(CROWDED_WAIT_S)
        try:
            if not await turn:
                raise TimeoutError
        finally:
            if self._queue.get(caller) == (limit, turn):
                del self._queue[caller]

    def _give_turn(self) -> None:
        """Let those that wait longest go on, as long as there are places."""
        while self._queue and not self._waits.is_full:
            caller = next(iter(self._queue))
            limit, turn = self._queue.pop(caller)
            if not turn.done():
                self._waits.add(limit, caller)
                turn.set_result(True)
        if self._queue:
            self._waits.end_within(CROWDED_WAIT_S)


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
