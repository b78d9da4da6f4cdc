"""The server daemon: all connections, the journal and the spool; one event loop."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio

from ..errors import UnreachableError
from ..transport.fleet_pb2_grpc import (
    add_AdminServicer_to_server,
    add_EnrollmentServicer_to_server,
)
from ..transport.keys import KeyPair
from ..transport.tls import server_credentials
from .admin import AdminService
from .bulk import BulkService
from .callers import Callers
from .denials import Denials
from .dispatch import Dispatcher
from .enrollment import CertificateIssuer, EnrollmentService
from .fleet import FleetService
from .home import SERVER_DAYS, ServerHome
from .journal import Journal
from .links import Links
from .spool import Spool
from .supervisor import Supervisor
from .threads import JournalThread

__all__ = ["Daemon"]

MESSAGE_BYTES_MAX = 16 << 20
ENROLL_MESSAGE_BYTES_MAX = 64 << 10
DRAIN_S = 10.0
STREAMS_PER_CONNECTION_MAX = 64
ENROLLMENTS_AT_ONCE_MAX = 64
ENROLL_CONNECTION_MS_MAX = 30_000


class Daemon:
    """Runs a server's folder until it is told to stop."""

    def __init__(self, home: ServerHome, *, clock: Callable[[], float] = time.time) -> None:
        config = home.config
        self._home = home
        self._clock = clock
        self._journal = Journal(home.folder / "journal.sqlite")
        self._journal.check()
        self._thread = JournalThread(self._journal)
        self._spool = Spool(home.folder / "spool", blob_bytes_max=config.blob_bytes_max)
        self._links = Links(self._journal.sites.all(), lease_s=config.lease_s, clock=clock)
        self._dispatcher = Dispatcher(
            self._journal, self._thread, self._spool, self._links,
            lease_s=config.lease_s, clock=clock,
        )  # fmt: skip
        self._supervisor = Supervisor(
            home.folder, self._journal, self._thread, self._dispatcher, self._links, self._spool,
            clock=clock,
        )  # fmt: skip
        self._issuer = CertificateIssuer(
            home.authority, self._journal, self._thread, self._links,
            days=config.certificate_days, clock=clock,
        )  # fmt: skip
        self._pair = home.server_pair(self._now())
        self._pair_at_s = clock()
        self._stop = asyncio.Event()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _server_pair(self) -> KeyPair:
        """Return the listeners' key and certificate, made anew at two thirds of its life."""
        if self._clock() - self._pair_at_s > SERVER_DAYS * 86400 * 2 / 3:
            self._pair, self._pair_at_s = self._home.server_pair(self._now()), self._clock()
        return self._pair

    async def run(self, *, ready: Callable[[dict[str, str]], None]) -> None:
        """Listen and serve until SIGTERM, SIGINT or `stop()`; `ready` gets the addresses.

        Raises:
            StoreError: another daemon runs in this folder.
            UnreachableError: a port is taken.
        """
        unlock = self._home.lock()
        try:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop.set)
            interrupted = await self._supervisor.restore()
            fleet, enroll, addresses = await self._listen()
            self._home.announce(addresses)
            for run_id in interrupted:
                self._supervisor.begin(run_id)
            ready(addresses)
            await self._record("started", addresses)
            await self._stop.wait()
            await self._drain(fleet, enroll)
        finally:
            self._home.retract()
            self._thread.close()
            self._journal.close()
            unlock()

    def stop(self) -> None:
        """Drain and end."""
        self._stop.set()

    async def _listen(self) -> tuple[grpc.aio.Server, grpc.aio.Server, dict[str, str]]:
        config = self._home.config
        fleet = grpc.aio.server(options=_options(MESSAGE_BYTES_MAX))
        denials = Denials(self._journal, self._thread, clock=self._clock)
        callers = Callers(
            self._links, denials, admin_serial=self._home.admin_serial, clock=self._clock
        )
        service = FleetService(
            self._journal, self._thread, self._links, self._dispatcher, self._issuer, callers,
            lease_s=config.lease_s, clock=self._clock,
        )  # fmt: skip
        admin = AdminService(
            self._journal, self._thread, self._links, self._supervisor, self._dispatcher, callers,
            clock=self._clock,
        )  # fmt: skip
        bulk = BulkService(callers, self._dispatcher, self._spool)
        handlers = {**service.handlers(), **bulk.handlers()}
        fleet.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("meadow.v1.Fleet", handlers),)
        )
        add_AdminServicer_to_server(admin, fleet)
        enroll = grpc.aio.server(
            options=[
                *_options(ENROLL_MESSAGE_BYTES_MAX),
                ("grpc.max_connection_age_ms", ENROLL_CONNECTION_MS_MAX),
                ("grpc.max_connection_age_grace_ms", ENROLL_CONNECTION_MS_MAX),
            ],  # so that nobody takes up all of the calls for long
            maximum_concurrent_rpcs=ENROLLMENTS_AT_ONCE_MAX,
        )
        enrollment = EnrollmentService(
            self._journal, self._thread, self._issuer, denials, clock=self._clock
        )
        add_EnrollmentServicer_to_server(enrollment, enroll)
        ca_pem = self._home.authority.certificate_pem
        mutual = server_credentials(self._server_pair, ca_pem=ca_pem)
        one_way = server_credentials(self._server_pair, ca_pem=None)
        host = config.hosts[0]
        fleet_port = _bind(fleet, config.listen, config.fleet_port, mutual)
        enroll_port = _bind(enroll, config.listen, config.enroll_port, one_way)
        self._issuer.fleet_address = f"{host}:{fleet_port}"
        await fleet.start()
        await enroll.start()
        addresses = {"fleet": f"{host}:{fleet_port}", "enroll": f"{host}:{enroll_port}"}
        return fleet, enroll, addresses

    async def _drain(self, fleet: grpc.aio.Server, enroll: grpc.aio.Server) -> None:
        """Let what is under way finish, then end; runs go on at the next start."""
        await self._record("stopping", {})
        self._links.close_all("the server is stopping")
        await asyncio.gather(fleet.stop(DRAIN_S), enroll.stop(DRAIN_S), self._supervisor.close())

    async def _record(self, kind: str, detail: dict[str, Any]) -> None:
        await self._thread(
            self._journal.events.record, 0, kind, json.dumps(detail), now_s=self._clock()
        )


def _options(message_bytes_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
        ("grpc.so_reuseport", 0),
        # or every connection buffers megabytes of its own
        ("grpc.http2.bdp_probe", 0),
        ("grpc.experimental.tcp_max_read_chunk_size", 256 << 10),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]


def _bind(server: grpc.aio.Server, host: str, port: int, credentials: Any) -> int:
    try:
        bound = server.add_secure_port(f"{host}:{port}", credentials)
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise UnreachableError(f"{host}:{port} is taken or not an address of this machine")
    return bound
