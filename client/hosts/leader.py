"""The machine that leads: admits the others, has them start ranks, and carries bytes between ranks.

What a member may ask for is a connection to a rank's port of the present attempt, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from ...config.sections.device import DeviceConfig
from ...errors import ConfigError, DataError, MeadowError, ProtocolError
from ...training.parallel.hosts import Host
from ...transport.address import Address
from .membership import Membership
from .wire import (
    HANDSHAKE_S_MAX,
    RANKS_MAX,
    SILENT_S_MAX,
    STREAM_S_MAX,
    Wire,
    accepted,
    carry,
)

__all__ = ["Leader"]

PENDING_MAX = 64
"""Connections that have not shown a certificate yet; one more ends the oldest."""
STREAMS_MAX = 4096
"""Connections of one member."""
REFUSALS_LOGGED_PER_MIN = 20
DEVICE = re.compile(r"[a-z][a-z0-9_]{1,31}(:\d{1,3})?", re.ASCII)

T = TypeVar("T")


@dataclass(eq=False, slots=True, kw_only=True)
class _Machine:
    """A machine that has joined."""

    name: str
    address: str
    devices: tuple[str, ...]
    line: Wire
    streams: set[asyncio.Task[Any]] = field(default_factory=set)
    waiting: dict[str, asyncio.Future[Any]] = field(default_factory=dict)

    async def ask(self, kind: str, **message: Any) -> Any:
        """Ask for something; returns the stream or the word by which it is answered.

        Raises:
            OSError: the machine is lost, or does not answer in time.
            DataError: it says that it cannot.
        """
        number = secrets.token_hex(16)
        future = self.waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self.line.send({"kind": kind, "id": number, **message})
            async with asyncio.timeout(STREAM_S_MAX):
                return await future
        except TimeoutError:
            raise TimeoutError(
                f"host {self.name} did not answer within {STREAM_S_MAX:g} s"
            ) from None
        finally:
            self.waiting.pop(number, None)

    def answer(self, number: object, result: object) -> bool:
        """Settle what was asked; returns whether anything was."""
        future = self.waiting.get(number) if isinstance(number, str) else None
        if future is None or future.done():
            return False
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
        return True


class Leader:
    """What `Hosts` says, as coroutines, for the machines that were invited to `membership`.

    Attributes:
        port: where it listens.
    """

    def __init__(
        self,
        membership: Membership,
        config: DeviceConfig,
        *,
        report: Callable[[str], None],
    ) -> None:
        """Listen, within a running loop.

        Raises:
            ConfigError: no machine was invited, or the address is not this machine's or not free.
        """
        assert config.hosts is not None
        self._membership, self._report = membership, report
        self._others_max, self._wait_s = config.hosts - 1, config.hosts_wait_s
        self._tls = membership.tls()
        self._listener = _listening(config.hosts_listen)
        self.port: int = self._listener.getsockname()[1]
        self._joined: dict[str, _Machine] = {}
        self._arrived = asyncio.Condition()
        self._pending: dict[asyncio.Task[None], None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._seats: list[_Machine] = []
        self._ports: list[frozenset[int]] = []
        self._forwarders: list[asyncio.Server] = []
        self._prefix = ""
        self._attempts = 0
        self._refusals, self._refused_at_s, self._last_refusal = 0, [0.0], ""
        self._loop = asyncio.get_running_loop()
        self._write_status()
        self._keep(self._accept())

    def address(self, host: int) -> str:
        """As `Hosts.address`."""
        return f"{self._prefix}.{host + 1}"

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self) -> None:
        while True:
            try:
                connected, address = await self._loop.sock_accept(self._listener)
            except OSError:  # no more files: wait until some are closed
                await asyncio.sleep(0.1)
                continue
            if len(self._pending) >= PENDING_MAX:
                oldest = next(iter(self._pending))
                del self._pending[oldest]
                oldest.cancel()
            connected.setblocking(False)
            task = self._keep(self._admit(connected, str(address[0])))
            self._pending[task] = None

    async def _admit(self, connected: socket.socket, address: str) -> None:
        """Serve one connection, if its peer is a member."""
        me = asyncio.current_task()
        assert me is not None
        line = None
        try:
            async with asyncio.timeout(HANDSHAKE_S_MAX):
                line = await accepted(connected, self._tls)
                name = self._membership.check(line.certificate_pem, now=datetime.now(UTC))
                first = await line.receive(within_s=HANDSHAKE_S_MAX)
        except (OSError, MeadowError, ValueError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and me in self._pending:
                raise  # this machine ends
            self._refuse(address, _reason(error))
            connected.close() if line is None else line.abort()
            return
        finally:
            self._pending.pop(me, None)
        try:
            if first["kind"] == "join":
                await self._serve_member(name, address, line, first)
            else:
                await self._serve_stream(name, address, line, first, me)
        except (OSError, MeadowError) as error:
            self._report(f"host {name}: {_reason(error)}")
        finally:
            line.close()

    async def _serve_member(
        self, name: str, address: str, line: Wire, first: dict[str, Any]
    ) -> None:
        there = self._joined.get(name)
        if there is not None:
            why = f"host {name} is joined already, from {there.address}"
            self._refuse(address, why)
            await line.send({"kind": "refused", "why": why})
            return
        member = _Machine(name=name, address=address, devices=_devices(first), line=line)
        self._joined[name] = member
        why = "hung up"
        try:
            await line.send({"kind": "welcome"})
            self._report(f"host {name} has joined from {address}, {len(member.devices)} ranks")
            await self._tell()
            while True:
                message = await line.receive(within_s=SILENT_S_MAX)
                self._hear(member, message)
                if message["kind"] == "ping":
                    await line.send({"kind": "pong"})
        except (OSError, MeadowError) as error:
            why = _reason(error)
        finally:
            del self._joined[name]
            lost = ConnectionError(f"host {name} is lost: {why}")
            for number in list(member.waiting):
                member.answer(number, lost)
            for task in member.streams:
                task.cancel()
            self._report(str(lost))
            self._write_status()

    def _hear(self, member: _Machine, message: dict[str, Any]) -> None:
        if message["kind"] == "done":
            member.answer(message.get("id"), None)
        elif message["kind"] == "failed":
            why = str(message.get("why"))[:1000]
            member.answer(message.get("id"), DataError(f"host {member.name}: {why}"))

    async def _serve_stream(
        self, name: str, address: str, line: Wire, first: dict[str, Any], me: asyncio.Task[Any]
    ) -> None:
        """Use a connection that a member has opened: because it was asked to, or to reach a rank."""
        member = self._joined.get(name)
        if member is None or len(member.streams) >= STREAMS_MAX:
            self._refuse(address, f"host {name} has not joined, or has {STREAMS_MAX} connections")
            return
        member.streams.add(me)
        try:
            if first["kind"] == "stream":
                ended = asyncio.Event()
                if member.answer(first.get("id"), (line, ended)):
                    await ended.wait()
                return
            host, port = first.get("host"), first.get("port")
            known = first["kind"] == "dial" and first.get("attempt") == self._attempts
            if not known or not isinstance(host, int) or not 0 <= host < len(self._ports):
                raise ProtocolError("it asks for what is not of this attempt")
            if port not in self._ports[host]:
                raise ProtocolError("it asks for a port that is no rank's")
            if host:
                await self._carry_to(line, self._seats[host - 1], port)
            else:
                await carry(line, await Wire.to_port(self.address(0), port))
        finally:
            member.streams.discard(me)

    async def _carry_to(self, line: Wire, member: _Machine, port: int) -> None:
        there, ended = await member.ask("dial", port=port)
        try:
            await carry(line, there)
        finally:
            ended.set()

    async def gather(self) -> tuple[Host, ...]:
        """As `Hosts.gather`."""
        await self.end()
        async with self._arrived:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s):
                    await self._arrived.wait_for(lambda: len(self._joined) >= self._others_max)
        self._attempts += 1
        self._seats = self._invited()
        self._prefix = f"127.{64 + secrets.randbelow(128)}.{secrets.randbelow(256)}"
        if len(self._seats) < self._others_max:
            names = ", ".join(member.name for member in self._seats)
            here = f"this one and {names}" if names else "this one alone"
            self._report(
                f"{self._others_max - len(self._seats)} hosts did not come within {self._wait_s:g} s; "
                f"training on {here}"
            )
        for host, member in enumerate(self._seats, 1):
            await member.ask("begin", attempt=self._attempts, prefix=self._prefix, host=host)
        self._write_status()
        return tuple(Host(name=each.name, devices=each.devices) for each in self._seats)

    def _invited(self) -> list[_Machine]:
        return sorted(self._joined.values(), key=lambda member: member.name)[: self._others_max]

    def changed(self) -> bool:
        """As `Hosts.changed`."""
        return self._invited() != self._seats

    async def start(self, host: int, sha256: str) -> socket.socket:
        """As `Hosts.start`; returns the way to the rank."""
        there, ended = await self._seats[host - 1].ask("start", sha256=sha256)
        ours, theirs = socket.socketpair()
        here = await Wire.local(theirs)

        async def carrying() -> None:
            try:
                await carry(here, there)
            finally:
                ended.set()

        self._keep(carrying())
        return ours

    async def connect(self, listed: Sequence[Sequence[int]]) -> None:
        """As `Hosts.connect`."""
        self._ports = ports = [frozenset(each) for each in listed]
        for host, member in enumerate(self._seats, 1):
            for port in ports[host]:
                self._forwarders.append(await self._forwarder(host, member, port))
        await asyncio.gather(*(member.ask("open", ports=listed) for member in self._seats))

    async def _forwarder(self, host: int, member: _Machine, port: int) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = Wire(reader, writer)
            me = asyncio.current_task()
            assert me is not None
            member.streams.add(me)
            try:
                await self._carry_to(line, member, port)
            except (OSError, MeadowError, asyncio.CancelledError):
                line.abort()  # the rank sees that the other is gone
            finally:
                member.streams.discard(me)

        return await asyncio.start_server(serve, self.address(host), port)

    async def end(self) -> None:
        """As `Hosts.end`."""
        forwarders, self._forwarders = self._forwarders, []
        for forwarder in forwarders:
            forwarder.close()
        seats, self._seats, self._ports = self._seats, [], []
        for member in seats:
            for task in list(member.streams):
                task.cancel()
            with contextlib.suppress(OSError, MeadowError):
                if self._joined.get(member.name) is member:
                    await member.ask("end")

    async def close(self) -> None:
        """End everything, and stop listening."""
        await self.end()
        self._listener.close()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self) -> None:
        self._write_status()
        async with self._arrived:
            self._arrived.notify_all()

    def _refuse(self, address: str, why: str) -> None:
        """Write down that somebody was refused; of a flood, the count and some."""
        now_s = time.time()
        self._refusals += 1
        self._last_refusal = f"{address}: {why}"
        recent = [at_s for at_s in self._refused_at_s if at_s > now_s - 60]
        if len(recent) < REFUSALS_LOGGED_PER_MIN:
            self._refused_at_s = [*recent, now_s]
            self._report(f"refused a connection from {address}: {why} ({self._refusals} so far)")
            self._write_status()

    def _write_status(self) -> None:
        seated = {member.name for member in self._seats}
        self._membership.write_status(
            {
                "process": os.getpid(),
                "port": self.port,
                "hosts": [
                    {
                        "name": member.name,
                        "address": member.address,
                        "ranks": len(member.devices),
                        "trains": member.name in seated,
                    }
                    for member in self._joined.values()
                ],
                "missing": self._others_max - len(self._joined),
                "refusals": self._refusals,
                "last_refusal": self._last_refusal,
            }
        )


def _listening(text: str) -> socket.socket:
    address = Address.parse(text, what="device.hosts_listen")
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listener = socket.create_server((address.host, address.port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"device.hosts_listen = {text!r}: {error.strerror or error}; it must be an address of this "
            "machine and a free port"
        ) from None
    listener.setblocking(False)
    return listener


def _devices(first: dict[str, Any]) -> tuple[str, ...]:
    """Return the devices that a member states.

    Raises:
        ProtocolError: they are not 1 to `RANKS_MAX` devices.
    """
    stated = first.get("devices")
    if (
        not isinstance(stated, list)
        or not 1 <= len(stated) <= RANKS_MAX
        or not all(isinstance(each, str) and DEVICE.fullmatch(each) for each in stated)
    ):
        raise ProtocolError(f"it does not state 1 to {RANKS_MAX} devices")
    return tuple(stated)


def _reason(error: BaseException) -> str:
    """Return why a connection was refused or ended, in a few words."""
    if isinstance(error, asyncio.CancelledError):
        return f"others came after it, and {PENDING_MAX} may wait"
    if isinstance(error, TimeoutError):
        return str(error) or "nothing came in time"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"[:200]
    return str(error)[:500] or type(error).__name__
