"""A machine that trains with the one that leads: `meadow client rank --join HOST:PORT`.

It dials, starts ranks of the apps that were given to it, and carries bytes between its ranks and the
others. It listens on the loopback network alone. When the leader is lost, it ends its ranks and
dials again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...apps.folder import content_hash
from ...errors import DataError, MeadowError, ProtocolError, RefusedError
from ...transport.address import Address
from ...transport.identity import identity_of
from .membership import Pass
from .wire import PING_S, RANKS_MAX, SILENT_S_MAX, Wire, carry, dialled, member_tls

__all__ = ["serve_ranks"]

RETRY_S = 1.0
HOSTS_MAX = 32
MODULE = "meadow.training.local.rank"
PREFIX = re.compile(r"127\.\d{1,3}\.\d{1,3}", re.ASCII)


async def serve_ranks(
    shown: Pass,
    leader: Address,
    *,
    apps: Sequence[Path],
    devices: Sequence[str],
    environment: Mapping[str, str],
    report: Callable[[str], None],
) -> None:
    """Serve the leader until this is cancelled; dial again whenever it is lost.

    `apps` are the only ones whose code runs, and `environment` is added to that of ranks.
    """
    context, said = member_tls(shown), ""
    while True:
        session = _Session(leader, context, apps, environment, report)
        try:
            await session.run(devices)
        except (OSError, MeadowError) as error:
            why = str(error) or type(error).__name__
            if isinstance(error, ConnectionRefusedError):
                why = "nobody leads there now, as training has not begun or the agent is idle"
            text = f"{leader}: {why}; trying again"
            if text != said or session.welcome:
                report(text)
            said = text
        finally:
            await session.close()
        await asyncio.sleep(RETRY_S)


class _Session:
    """One connection to the leader, and what it has asked for."""

    def __init__(
        self,
        leader: Address,
        context: ssl.SSLContext,
        apps: Sequence[Path],
        environment: Mapping[str, str],
        report: Callable[[str], None],
    ) -> None:
        self._leader, self._context, self._apps = leader, context, apps
        self._environment, self._report = environment, report
        self.welcome = False
        self._attempt, self._prefix, self._host = 0, "", 0
        self._own_ports: frozenset[int] = frozenset()
        self._ranks = 0
        self._forwarders: list[asyncio.Server] = []
        self._work: set[asyncio.Task[Any]] = set()
        self._line: Wire | None = None

    async def run(self, devices: Sequence[str]) -> None:
        """Join, and do what the leader asks.

        Raises:
            OSError: the leader is lost.
            RefusedError: it does not want this machine.
            ProtocolError: it says what no leader says.
        """
        line = self._line = await self._dial()
        await line.send({"kind": "join", "devices": [*devices]})
        first = await line.receive(within_s=SILENT_S_MAX)
        if first["kind"] == "refused":
            raise RefusedError(str(first.get("why"))[:1000])
        if first["kind"] != "welcome":
            raise ProtocolError("the leader does not say welcome")
        self.welcome = True
        self._report(f"joined {self._leader} with {len(devices)} ranks")
        pinging = asyncio.create_task(self._ping(line))
        try:
            while True:
                message = await line.receive(within_s=SILENT_S_MAX)
                if message["kind"] in ("begin", "end"):
                    await self._begin(line, message)  # before anything of the new attempt
                elif message["kind"] != "pong":
                    self._keep(self._answer(line, message))
        finally:
            pinging.cancel()

    async def close(self) -> None:
        """End everything."""
        await self._drop()
        if self._line is not None:
            self._line.close()

    async def _ping(self, line: Wire) -> None:
        with contextlib.suppress(OSError):  # the loop above sees it too
            while True:
                await asyncio.sleep(PING_S)
                await line.send({"kind": "ping"})

    async def _dial(self) -> Wire:
        line = await dialled(self._leader, self._context)
        identity_of(line.certificate_pem)
        return line

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _drop(self) -> None:
        """End everything of an attempt."""
        forwarders, self._forwarders = self._forwarders, []
        for forwarder in forwarders:
            forwarder.close()
        work = list(self._work)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        self._own_ports, self._ranks = frozenset(), 0

    async def _begin(self, line: Wire, message: dict[str, Any]) -> None:
        await self._drop()
        if message["kind"] == "begin":
            prefix, host = message.get("prefix"), message.get("host")
            if not isinstance(prefix, str) or not PREFIX.fullmatch(prefix):
                raise ProtocolError(
                    "the leader gives an address that is not of the loopback network"
                )
            if not isinstance(host, int) or not 0 < host < HOSTS_MAX:
                raise ProtocolError("the leader gives a number that is no host's")
            self._attempt = int(message.get("attempt", 0))
            self._prefix, self._host = prefix, host
        await line.send({"kind": "done", "id": message.get("id")})

    async def _answer(self, line: Wire, message: dict[str, Any]) -> None:
        """Do one thing; what goes wrong with it is told to the leader."""
        kind, number = message["kind"], message.get("id")
        try:
            if kind == "start":
                await self._rank(number, str(message.get("sha256")))
            elif kind == "open":
                await self._open(message.get("ports"))
                await line.send({"kind": "done", "id": number})
            elif kind == "dial":
                if message.get("port") not in self._own_ports:
                    raise ProtocolError("no rank listens on that port here")
                here = await Wire.to_port(self._address(self._host), message["port"])
                await self._stream(here, {"kind": "stream", "id": number})
            else:
                raise ProtocolError(f"nothing is known of {kind!r:.40}; are both of one version?")
        except (OSError, MeadowError) as error:
            with contextlib.suppress(OSError):
                why = str(error) or type(error).__name__
                await line.send({"kind": "failed", "id": number, "why": why[:1000]})

    def _address(self, host: int) -> str:
        return f"{self._prefix}.{host + 1}"

    async def _stream(self, here: Wire, header: dict[str, Any]) -> None:
        """Carry bytes between a connection of this machine and a new one to the leader."""
        try:
            there = await self._dial()
            await there.send(header)
        except BaseException:
            here.abort()
            raise
        await carry(here, there)

    async def _rank(self, number: object, sha256: str) -> None:
        """Start a rank, which lives as long as its connection to the leader."""
        if self._ranks >= RANKS_MAX:
            raise DataError(f"it has {RANKS_MAX} ranks already")
        folder = self._app(sha256)
        self._ranks += 1
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", MODULE, "--fd", str(theirs.fileno())),
                *("--app", str(folder)),
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **self._environment},
                stdin=asyncio.subprocess.DEVNULL,
            )
        try:
            await self._stream(await Wire.local(ours), {"kind": "stream", "id": number})
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())

    def _app(self, sha256: str) -> Path:
        for folder in self._apps:
            if content_hash(folder) == sha256:
                return folder
        given = ", ".join(map(str, self._apps))
        raise DataError(
            f"none of the apps here ({given}) is the one that is trained, sha256 {sha256:.12}; copy "
            "the leader's folder of it and start `meadow client rank` with --app"
        )

    async def _open(self, listed: Any) -> None:
        """Listen on the ports of all other machines' ranks, at their addresses."""
        if not _are_ports(listed) or not self._host < len(listed):
            raise ProtocolError("the leader lists what are no ports")
        self._own_ports = frozenset(listed[self._host])
        for host, ports in enumerate(listed):
            for port in ports if host != self._host else ():
                self._forwarders.append(await self._forwarder(host, port))

    async def _forwarder(self, host: int, port: int) -> asyncio.Server:
        header = {"kind": "dial", "attempt": self._attempt, "host": host, "port": port}

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            me = asyncio.current_task()
            assert me is not None
            self._work.add(me)
            try:
                await self._stream(Wire(reader, writer), header)
            except (OSError, MeadowError, asyncio.CancelledError):
                writer.transport.abort()  # the rank sees that the other is gone
            finally:
                self._work.discard(me)

        return await asyncio.start_server(serve, self._address(host), port)


def _are_ports(listed: Any) -> bool:
    return (
        isinstance(listed, list)
        and len(listed) <= HOSTS_MAX
        and all(isinstance(ports, list) and len(ports) <= RANKS_MAX + 1 for ports in listed)
        and all(isinstance(port, int) and 0 < port < 65536 for ports in listed for port in ports)
    )
