"""Framed messages between two processes on one machine, over a socket pair.

The network process starts the compute process and keeps one end; the other is inherited as a
file descriptor. When either side dies the other reads an end of file, so no orphan stays behind.
A frame is a 4-byte big-endian length and one protobuf message; tensors never come this way.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from ..errors import LimitError, ProtocolError

__all__ = ["FRAME_BYTES_MAX", "AsyncPipe", "Pipe"]

FRAME_BYTES_MAX = 64 << 20
_HEADER = struct.Struct(">I")

In = TypeVar("In", bound=Message)
Out = TypeVar("Out", bound=Message)


def _frame(message: Message) -> bytes:
    body = message.SerializeToString()
    if len(body) > FRAME_BYTES_MAX:
        raise LimitError(f"a message of {len(body)} bytes exceeds {FRAME_BYTES_MAX}")
    return _HEADER.pack(len(body)) + body


def _length(header: bytes) -> int:
    (length,) = _HEADER.unpack(header)
    if length > FRAME_BYTES_MAX:
        raise LimitError(f"a frame of {length} bytes exceeds {FRAME_BYTES_MAX}")
    return int(length)


def _parse(kind: type[In], body: bytes) -> In:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise ProtocolError(f"a frame is not a {kind.__name__}: {error}") from None


class Pipe(Generic[In, Out]):
    """The blocking end, for the compute process; `send` may be called from any thread."""

    def __init__(self, sock: socket.socket, receives: type[In]) -> None:
        self._socket = sock
        self._receives = receives
        self._sending = threading.Lock()

    @classmethod
    def inherited(cls, fd: int, receives: type[In]) -> Pipe[In, Out]:
        """Take over the descriptor that the parent process passed."""
        sock = socket.socket(fileno=fd)
        sock.setblocking(True)
        return cls(sock, receives)

    def send(self, message: Out) -> None:
        """Send one message, blocking while the other side is slow.

        Raises:
            BrokenPipeError, ConnectionError: the other process is gone.
        """
        frame = _frame(message)
        with self._sending:
            self._socket.sendall(frame)

    def receive(self) -> In | None:
        """Return the next message, or None when the other process is gone."""
        header = self._exactly(_HEADER.size)
        if header is None:
            return None
        body = self._exactly(_length(header))
        return None if body is None else _parse(self._receives, body)

    def _exactly(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._socket.recv(size - len(parts))
            except ConnectionError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)


class AsyncPipe(Generic[In, Out]):
    """The asyncio end, for the network process."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, receives: type[In]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._receives = receives

    @classmethod
    async def open(cls, sock: socket.socket, receives: type[In]) -> AsyncPipe[In, Out]:
        """Wrap one end of a socket pair."""
        reader, writer = await asyncio.open_connection(sock=sock)
        return cls(reader, writer, receives)

    async def send(self, message: Out) -> None:
        """Send one message, waiting while the other side is slow.

        Raises:
            ConnectionError: the other process is gone.
        """
        self._writer.write(_frame(message))
        await self._writer.drain()

    async def receive(self) -> In | None:
        """Return the next message, or None when the other process is gone."""
        try:
            header = await self._reader.readexactly(_HEADER.size)
            body = await self._reader.readexactly(_length(header))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return _parse(self._receives, body)

    def close(self) -> None:
        """Close this end; the other process reads an end of file."""
        self._writer.close()
