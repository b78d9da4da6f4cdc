"""One connection to the server: a stream of small messages, and separate calls for tensors."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc

from ...errors import ProtocolError, UnreachableError
from ...transport.file_pool import FilePool
from ...transport.fleet_pb2 import (
    AgentMessage,
    Blob,
    Certificate,
    Hello,
    RenewRequest,
    ServerMessage,
    Welcome,
)
from ...transport.fleet_pb2_grpc import FleetStub
from ...transport.protocol import PROTOCOL_VERSION
from ...transport.proxy import proxy_options
from .line import LineState
from .rpc_errors import rpc_errors
from .stream import Stream
from .token_bucket import TokenBucket
from .transfer import Bulk

__all__ = ["MESSAGE_BYTES_MAX", "Connection", "channel_options"]

MESSAGE_BYTES_MAX = 16 << 20
BLOB_BYTES_MAX = 64 << 30
ANSWER_WAIT_S = 20.0

_OPTIONS: Final[list[tuple[str, int | str]]] = [
    ("SingleThreadedUnaryStream", 1),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.bdp_probe", 0),
]
"""The frame size: one chunk per frame."""
LOOKAHEAD_BYTES_MAX = 4 << 20
LOOKAHEAD_CHUNKS = 4
"""The bytes that may be in transit unread; they are lost with the connection."""


KEEPALIVE_MS = 20_000
"""An open stream without messages carries a ping so often, more often than proxies and NAT cut idle
connections."""
UNACKNOWLEDGED_MS_MAX = 10_000
"""TCP_USER_TIMEOUT: a line that acknowledges nothing for so long is dead, as NAT has forgotten it."""
PING_ANSWER_MS_MAX = 60_000
"""A ping that a proxy takes and does not pass on has no answer. It waits behind what is being uploaded, so on a
slow line this must be long."""


def channel_options() -> list[tuple[str, int | str]]:
    """Return the options of a channel: it detects a dead line, and shares no state with others."""
    return [
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", UNACKNOWLEDGED_MS_MAX),
        ("grpc.http2.ping_timeout_ms", PING_ANSWER_MS_MAX),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.use_local_subchannel_pool", 1),  # else an old attempt's backoff delays a new one
        ("grpc.enable_retries", 0),
    ]


class Connection:
    """An open stream, and the transfers on the same connection; a context manager.

    Attributes:
        lost: a future that is done once the stream has ended.
    """

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials,
        line: LineState | None = None,
        bucket: TokenBucket | None = None,
    ) -> None:
        """Open a connection; `line` is the state that earlier connections have measured, and `bucket` what
        its transfers are held to."""
        self.address = address
        self._line = line or LineState()
        lookahead = LOOKAHEAD_CHUNKS * self._line.chunk_bytes
        if self._line.is_steady:
            lookahead = LOOKAHEAD_BYTES_MAX
        if bucket is not None:
            lookahead = min(lookahead, LOOKAHEAD_CHUNKS * bucket.chunk_bytes)
        options = [*channel_options(), *_OPTIONS, ("grpc.http2.lookahead_bytes", lookahead)]
        options += proxy_options(address)
        self._channel = grpc.secure_channel(address, credentials, options)
        self._stub = FleetStub(self._channel)
        self._bulk = Bulk(self._channel, address, self._line, bucket, blob_bytes_max=BLOB_BYTES_MAX)
        self._stream = Stream(self._stub.Connect, address)
        self.lost = self._stream.lost

    async def hello(self, client: str, version: str, *, relay: bool = False) -> Welcome:
        """Introduce the client and return the server's welcome.

        Raises:
            UnreachableError: no server answers at the address.
            IdentityError: the server does not know this client, or has revoked it.
            ProtocolError: the answer is not a welcome.
        """
        greeting = Hello(protocol=PROTOCOL_VERSION, client=client, version=version, relay=relay)
        try:
            async with asyncio.timeout(ANSWER_WAIT_S):
                with suppress(UnreachableError):  # `receive` raises the cause
                    await self.send(AgentMessage(hello=greeting))
                answer = await self.receive()
        except TimeoutError:
            text = f"{self.address} did not answer within {ANSWER_WAIT_S:.0f} s"
            raise UnreachableError(text) from None
        if not answer.HasField("welcome"):
            raise ProtocolError(f"{self.address} did not begin with a welcome")
        self._line.allow_chunks(answer.welcome.chunk_bytes)
        return answer.welcome

    async def send(self, message: AgentMessage) -> None:
        """As `Stream.send`."""
        await self._stream.send(message)
        self._line.sent_bytes += message.ByteSize()

    async def receive(self) -> ServerMessage:
        """As `Stream.receive`."""
        message = await self._stream.receive()
        self._line.received_bytes += message.ByteSize()
        return message

    async def download(self, blob: Blob, folder: Path, file_pool: FilePool | None = None) -> Path:
        """As `Bulk.download`."""
        return await self._bulk.download(blob, folder, file_pool)

    async def upload(self, instruction_id: str, blob: Blob, path: Path) -> None:
        """As `Bulk.upload`."""
        await self._bulk.upload(instruction_id, blob, path)

    async def renew(self, csr_pem: bytes) -> Certificate:
        """Ask for the next certificate.

        Raises:
            UnreachableError, IdentityError, ProtocolError: the server issues none.
        """
        with rpc_errors(self.address):
            request = RenewRequest(csr_pem=csr_pem)
            return await asyncio.to_thread(
                partial(self._stub.Renew, request, timeout=ANSWER_WAIT_S)
            )

    def hang_up(self) -> None:
        """End the stream; a pending `receive` raises an `UnreachableError`."""
        self._stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang_up()
        self._channel.close()
