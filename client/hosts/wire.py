"""One connection between two machines of a site: TLS, lines of JSON, then perhaps plain bytes.

Every size and wait is bounded; what ends a connection is an exception here, never a hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import tempfile
from typing import Any

from ...errors import ProtocolError
from ...transport.address import Address
from .membership import Pass

__all__ = [
    "HANDSHAKE_S_MAX",
    "PING_S",
    "RANKS_MAX",
    "SILENT_S_MAX",
    "STREAM_S_MAX",
    "Wire",
    "accepted",
    "carry",
    "dialled",
    "member_tls",
]

LINE_BYTES_MAX = 64 << 10
"""One message of JSON."""
COPY_BYTES_MAX = 256 << 10
"""What is read of a connection at once, and half of what is kept of it."""
HANDSHAKE_S_MAX = 10.0
"""The time from a connection to its first message, certificate included."""
STREAM_S_MAX = 30.0
"""How long one machine waits for what it asked of the other."""
PING_S = 5.0
SILENT_S_MAX = 30.0
"""A machine that is silent for longer is lost."""
RANKS_MAX = 64
"""The ranks of one machine."""


class Wire:
    """A connection, by its reader and writer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def local(cls, connected: socket.socket) -> Wire:
        """Return a connection that stays on this machine."""
        return cls(*await asyncio.open_connection(sock=connected, limit=COPY_BYTES_MAX))

    @classmethod
    async def to_port(cls, host: str, port: int) -> Wire:
        """Return a connection to a rank of this machine.

        Raises:
            OSError: it does not listen.
        """
        return cls(*await asyncio.open_connection(host, port, limit=COPY_BYTES_MAX))

    async def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises:
            OSError: the connection has ended, or takes nothing in time.
        """
        self.writer.write(json.dumps(message).encode() + b"\n")
        async with asyncio.timeout(STREAM_S_MAX):
            await self.writer.drain()

    async def receive(self, *, within_s: float) -> dict[str, Any]:
        """Return the next message.

        Raises:
            OSError: the connection has ended, or nothing came in time.
            ProtocolError: it is no message.
        """
        async with asyncio.timeout(within_s):
            try:
                line = await self.reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                raise ConnectionError("it hung up") from None
            except asyncio.LimitOverrunError:
                raise ProtocolError(f"a message exceeds {LINE_BYTES_MAX} bytes") from None
        if len(line) > LINE_BYTES_MAX:
            raise ProtocolError(f"a message exceeds {LINE_BYTES_MAX} bytes")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
            raise ProtocolError("a message is no object of JSON with a kind")
        return message

    @property
    def certificate_pem(self) -> bytes:
        """The certificate that the peer has shown; empty without one."""
        secured = self.writer.get_extra_info("ssl_object")
        shown = None if secured is None else secured.getpeercert(binary_form=True)
        return ssl.DER_cert_to_PEM_cert(shown).encode() if shown else b""

    def close(self) -> None:
        """End the connection; what was written still goes out."""
        self.writer.close()

    def abort(self) -> None:
        """End the connection now."""
        self.writer.transport.abort()


async def carry(one: Wire, other: Wire) -> None:
    """Carry bytes both ways until one of the connections ends, then end the other."""
    ways = [
        asyncio.ensure_future(_copy(source.reader, sink.writer))
        for source, sink in ((one, other), (other, one))
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        one.close()
        other.close()
    except asyncio.CancelledError:
        one.abort()
        other.abort()
        raise
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(COPY_BYTES_MAX):
            writer.write(data)
            await writer.drain()


async def accepted(connected: socket.socket, context: ssl.SSLContext) -> Wire:
    """Return a connection that has come, once the peer has shown a certificate of the authority.

    Raises:
        OSError: it has not.
    """
    loop = asyncio.get_running_loop()
    _without_delay(connected)
    reader = asyncio.StreamReader(limit=COPY_BYTES_MAX)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, connected, ssl=context, ssl_handshake_timeout=HANDSHAKE_S_MAX
    )
    return Wire(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


async def dialled(leader: Address, context: ssl.SSLContext) -> Wire:
    """Return a connection to the machine that leads.

    Raises:
        OSError: it does not answer, or another authority issued its certificate.
    """
    async with asyncio.timeout(HANDSHAKE_S_MAX):
        reader, writer = await asyncio.open_connection(
            leader.host,
            leader.port,
            ssl=context,
            limit=COPY_BYTES_MAX,
            ssl_handshake_timeout=HANDSHAKE_S_MAX,
        )
    _without_delay(writer.get_extra_info("socket"))
    return Wire(reader, writer)


def member_tls(shown: Pass) -> ssl.SSLContext:
    """Return what a machine dials with: it trusts certificates of servers by the pass's authority,
    whatever their name, as that authority is of this site alone and has made one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=shown.ca_pem.decode())
    fd, name = tempfile.mkstemp()  # of mode 600; ssl takes keys from files only
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(shown.certificate_pem + shown.key_pem)
        context.load_cert_chain(name)
    finally:
        os.unlink(name)
    return context


def _without_delay(connected: socket.socket) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
