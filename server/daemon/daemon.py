"""The server daemon: one event loop with all connections, the journal and the spool."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import grpc
import grpc.aio

from ...errors import UnreachableError
from ...machine.process_limits import give_back_freed_memory
from ...transport.address import Address
from ...transport.blobs import CHUNK_BYTES
from ...transport.identity import fingerprint_of
from ...transport.keys import KeyPair
from ...transport.metrics_listener import MetricsListener
from ...transport.tls import server_credentials
from ...transport.tracing import traces_of
from ..journal.journal import Journal
from ..notify.notifier import Notifier
from ..notify.receivers import receivers_of
from .admin import AdminService
from .administration import Administration
from .agent_registry import AgentRegistry
from .audit_limiter import Denials
from .audit_trail import AuditTrail
from .blob_service import BulkService, window_bytes
from .calls import FirstMessages
from .condition_watch import ConditionWatch
from .dispatch import Dispatcher
from .enrollment import CertificateIssuer, EnrollmentService
from .failures import service_of
from .fleet import FleetService
from .floods import Floods
from .peer_auth import Callers
from .server_dir import SERVER_DAYS, ServerFolder
from .spool import ABANDONED_S, Spool
from .storage import Storage
from .supervisor import Supervisor
from .threads import JournalThread

__all__ = ["Daemon", "Works"]

MESSAGE_BYTES_MAX = CHUNK_BYTES + 1024
"""A chunk with its framing; larger messages travel as files."""
SENT_MESSAGE_BYTES_MAX = 16 << 20
HANDSHAKE_MS_MAX = 20_000
"""As long as gRPC's clients wait. Of thousands that return at once, each has its turn late, and those that
were ended would begin again."""
MEMORY_KEPT_S = 15.0
ENROLL_MESSAGE_BYTES_MAX = 64 << 10
DRAIN_S = 10.0
FLOODS_EVERY_S = 2.0
FRUITLESS_BYTES_MAX = {"fleet": 10 << 20, "enroll": 1 << 20}
"""Bytes of a connection that belong to no message received; unfinished uploads are fewer."""
STREAMS_PER_CONNECTION_MAX = 16
CALLS_WAITING_MAX = 16 << 10
"""Bound of the clients' calls that Python has not taken up yet. From 1,000 on, gRPC would cancel some of
any client, each of which would come back with another handshake."""
ENROLL_CONNECTION_MS_MAX = 10_000
ENROLL_STREAMS_MAX = 1
"""A client enrols with one call. With many calls in its queue, gRPC cancels some of any caller."""
ENROLL_CONNECTIONS_MAX = 4096
"""Bound of unauthenticated connections, so that file descriptors are left for the fleet."""


class Works(NamedTuple):
    """What a relay uses of its daemon, on the daemon's event loop."""

    journal: Journal
    thread: JournalThread
    dispatcher: Dispatcher
    agents: AgentRegistry
    spool: Spool


class Daemon:
    """Runs the server of a folder until it is stopped."""

    def __init__(
        self, server_folder: ServerFolder, *, clock: Callable[[], float] = time.time
    ) -> None:
        config = server_folder.config
        self._server_folder = server_folder
        self._clock = clock
        self._journal = Journal(server_folder.folder / "journal.sqlite")
        self._journal.check()
        self._thread = JournalThread(self._journal)
        self._spool = Spool(
            server_folder.folder / "spool",
            blob_bytes_max=config.blob_bytes_max,
            reply_bytes_min=config.reply_bytes_min,
            client_bytes_max=config.client_bytes_max,
            bytes_max=config.spool_bytes_max,
        )
        self._agents = AgentRegistry(self._journal.sites.all(), lease_s=config.lease_s, clock=clock)
        self._dispatcher = Dispatcher(
            self._journal, self._thread, self._spool, self._agents,
            lease_s=config.lease_s, clock=clock,
            traces=traces_of("meadow-server", lambda: server_folder.authority.certificate_pem),
        )  # fmt: skip
        self._supervisor = Supervisor(
            server_folder.folder, self._journal, self._thread, self._dispatcher, self._agents, self._spool,
            clock=clock,
        )  # fmt: skip
        self._issuer = CertificateIssuer(
            server_folder.authority, self._journal, self._thread, self._agents,
            days=config.certificate_days, clock=clock,
        )  # fmt: skip
        self._pair = server_folder.server_pair(self._now())
        self._pair_at_s = clock()
        self._floods = Floods()
        self._audit = AuditTrail(server_folder.audit_log(clock), clock=clock)
        self._denials = Denials(self._journal, self._thread, self._audit.refused, clock=clock)
        self._listener: MetricsListener | None = None
        self._storage = Storage(
            server_folder, self._journal, self._thread, self._audit, clock=clock
        )
        self._watch = ConditionWatch(
            server_folder, self._journal, self._agents,
            server_certificate=lambda: self._server_pair().certificate_pem,
            used_bytes=lambda: self._storage.used_bytes, record=self._report, clock=clock,
        )  # fmt: skip
        self._notifier = self._make_notifier()
        self._supervisor.observers.append(lambda run_id, kind, detail: self._notifier.wake())
        self._stop = asyncio.Event()
        self.works = Works(self._journal, self._thread, self._dispatcher, self._agents, self._spool)

    def _make_notifier(self) -> Notifier:
        config, folder = self._server_folder.config.notify, self._server_folder
        return Notifier(
            self._journal, self._thread.patiently,
            receivers_of(config, folder.folder, clock=self._clock) if config else [],
            events=config.events if config else (), folder=folder.folder,
            server=folder.config.hosts[0],
            server_id=fingerprint_of(folder.authority.certificate_pem)[:12],
            record=self._report, clock=self._clock,
        )  # fmt: skip

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _server_pair(self) -> KeyPair:
        """Return the listeners' key and certificate, renewed at two thirds of its lifetime."""
        if self._clock() - self._pair_at_s > SERVER_DAYS * 86400 * 2 / 3:
            self._pair, self._pair_at_s = (
                self._server_folder.server_pair(self._now()),
                self._clock(),
            )
        return self._pair

    async def run(
        self,
        *,
        ready: Callable[[dict[str, str]], None],
        before_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Listen and serve until SIGTERM, SIGINT or `stop()`; `ready` gets the addresses.

        `before_end` ends what works with the dispatcher beside the daemon's own runs.

        Raises:
            StoreError: another daemon runs in this folder.
            UnreachableError: a port is taken.
        """
        unlock = self._server_folder.lock()
        try:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop.set)
            self._notifier.begin()
            interrupted = await self._supervisor.restore()
            fleet, enroll, addresses = await self._listen()
            await self._listen_for_metrics(addresses)
            await self._audit.done(
                who="daemon", role="local", call="server start", what=addresses, outcome="ok"
            )
            self._server_folder.announce(addresses)
            for run_id in interrupted:
                self._supervisor.begin(run_id)
            ready(addresses)
            await self._record("started", addresses)
            chores = [
                asyncio.create_task(_every(MEMORY_KEPT_S, give_back_freed_memory)),
                asyncio.create_task(self._end_floods(addresses)),
                asyncio.create_task(_every(ABANDONED_S / 4, self._spool.drop_abandoned)),
                asyncio.create_task(self._storage.run()),
                asyncio.create_task(self._watch.run()),
                asyncio.create_task(self._notifier.run()),
            ]
            await self._stop.wait()
            for chore in chores:
                chore.cancel()
            if before_end is not None:
                await before_end()
            await asyncio.wait(chores)  # the notifier ends the command that it has started
            await self._drain(fleet, enroll)
        finally:
            self._server_folder.retract()
            self._thread.close()
            self._journal.close()
            unlock()

    def stop(self) -> None:
        """Drain and end."""
        self._stop.set()

    async def _listen(self) -> tuple[grpc.aio.Server, grpc.aio.Server, dict[str, str]]:
        config = self._server_folder.config
        fleet = grpc.aio.server(
            options=[
                *_options(MESSAGE_BYTES_MAX),
                ("grpc.http2.lookahead_bytes", window_bytes(self._agents.enrolled)),
                ("grpc.server.max_pending_requests", CALLS_WAITING_MAX),
                ("grpc.server.max_pending_requests_hard_limit", CALLS_WAITING_MAX),
            ]
        )
        denials = self._denials
        callers = Callers(self._agents, self._server_folder.roles, denials, clock=self._clock)
        first_messages = FirstMessages()
        service = FleetService(
            self._journal, self._thread, self._agents, self._dispatcher, self._issuer, callers,
            first_messages, self._floods, lease_s=config.lease_s, clock=self._clock,
        )  # fmt: skip
        admin = AdminService(
            self._journal, self._thread, self._agents, self._supervisor, self._dispatcher,
            self._floods, self._server_folder, self._storage, clock=self._clock,
        )  # fmt: skip
        bulk = BulkService(callers, self._dispatcher, self._spool, first_messages, self._floods)
        handlers = {**service.handlers(), **bulk.handlers()}
        administration = Administration(admin, callers, first_messages, self._audit).handlers()
        fleet.add_generic_rpc_handlers(
            (
                service_of("Fleet", handlers, callers.admit),
                service_of("Admin", administration, callers.admit, for_admin=True),
            )
        )
        enroll = grpc.aio.server(
            options=[
                *_options(ENROLL_MESSAGE_BYTES_MAX, streams_max=ENROLL_STREAMS_MAX),
                ("grpc.max_connection_age_ms", ENROLL_CONNECTION_MS_MAX),
                ("grpc.max_connection_age_grace_ms", ENROLL_CONNECTION_MS_MAX),
                ("grpc.max_allowed_incoming_connections", ENROLL_CONNECTIONS_MAX),
            ]
        )
        enrollment = EnrollmentService(self._issuer, denials, self._audit)
        enroll.add_generic_rpc_handlers(
            (service_of("Enrollment", enrollment.handlers(), callers.admit),)
        )
        ca_pem = self._server_folder.authority.certificate_pem
        mutual = server_credentials(self._server_pair, ca_pem=ca_pem)
        one_way = server_credentials(self._server_pair, ca_pem=None)
        fleet_port = _bind(fleet, config.listen, config.fleet_port, mutual, "fleet_port")
        enroll_port = _bind(enroll, config.listen, config.enroll_port, one_way, "enroll_port")
        self._issuer.fleet_address = config.fleet_advertised(fleet_port)
        await fleet.start()
        await enroll.start()
        host = config.hosts[0]
        addresses = {
            "fleet": str(Address(host, fleet_port)),
            "enroll": str(Address(host, enroll_port)),
        }
        return fleet, enroll, addresses

    async def _listen_for_metrics(self, addresses: dict[str, str]) -> None:
        """Listen for Prometheus, where server.toml says so; its address is added."""
        asked = self._server_folder.config.metrics_address
        if asked is None:
            return
        from .monitoring import Monitoring  # imports the client of Prometheus

        monitoring = Monitoring(
            self._server_folder, self._journal, self._thread, self._agents,
            notifier=self._notifier, storage=self._storage, server_certificate=lambda: self._server_pair().certificate_pem,
        )  # fmt: skip
        self._supervisor.observers.append(monitoring.observe)
        self._listener = MetricsListener(monitoring.scraped, key="metrics_address")
        address = Address.parse(asked)
        await self._listener.start(address)
        addresses["metrics"] = str(Address(address.host, self._listener.port))

    async def _drain(self, fleet: grpc.aio.Server, enroll: grpc.aio.Server) -> None:
        """Finish the calls under way, then end; runs are resumed at the next start."""
        await self._record("stopping", {})
        self._agents.close_all("the server is stopping")
        if self._listener is not None:
            await self._listener.close()
        await asyncio.gather(fleet.stop(DRAIN_S), enroll.stop(DRAIN_S), self._supervisor.close())

    async def _end_floods(self, addresses: Mapping[str, str]) -> None:
        """End, every few seconds, the connections that flood the server, and record them."""
        listeners = {int(addresses[name].rpartition(":")[2]): name for name in FRUITLESS_BYTES_MAX}
        bounds = {port: FRUITLESS_BYTES_MAX[name] for port, name in listeners.items()}
        while True:
            await asyncio.sleep(FLOODS_EVERY_S)
            now_s = asyncio.get_running_loop().time()
            found = await self._floods.end_fruitless(bounds, now_s=now_s)
            for each in found:
                detail = {
                    "address": each.address,
                    "listener": listeners[each.port],
                    "fruitless_bytes": str(each.fruitless_bytes),
                }
                await self._denials.record(detail, caller=each.address, kind="flood_ended")

    async def _record(self, kind: str, detail: Mapping[str, Any]) -> None:
        await self._thread(
            self._journal.events.record, 0, kind, json.dumps(detail), now_s=self._clock()
        )

    async def _report(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Record an event of which somebody may be told, as soon as the disk has room."""
        await self._thread.patiently(
            self._journal.events.record, 0, kind, json.dumps(detail), now_s=self._clock()
        )
        self._notifier.wake()


async def _every(pause_s: float, chore: Callable[[], None]) -> None:
    """Run a chore in a thread every `pause_s` seconds, such as releasing freed memory."""
    while True:
        await asyncio.sleep(pause_s)
        await asyncio.to_thread(chore)


def _options(
    message_bytes_max: int, *, streams_max: int = STREAMS_PER_CONNECTION_MAX
) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_send_message_length", SENT_MESSAGE_BYTES_MAX),
        ("grpc.max_concurrent_streams", streams_max),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
        ("grpc.per_message_decompression", 0),  # no peer compresses: only an attacker would
        ("grpc.absolute_max_metadata_size", 16 << 10),
        ("grpc.so_reuseport", 0),
        # without these, every connection buffers megabytes of its own
        ("grpc.http2.bdp_probe", 0),
        ("grpc.experimental.tcp_max_read_chunk_size", 256 << 10),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # gRPC's own limit on pings costs a core for a minute: `Floods` ends such connections
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _bind(server: grpc.aio.Server, host: str, port: int, credentials: Any, key: str) -> int:
    try:
        bound = server.add_secure_port(str(Address(host, port)), credentials)
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise UnreachableError(_why_not_bound(host, port, key))
    return bound


def _why_not_bound(host: str, port: int, key: str) -> str:
    """Return why a port cannot be listened on, from the system's error of a second attempt."""
    where = Address(host, port)
    try:
        family, _, _, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as plain:
            plain.bind(name)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return (
                f"{where} is taken by another program or server; give another port with {key} in "
                f"server.toml or --{key.replace('_', '-')}"
            )
        if error.errno == errno.EACCES:
            return f"{where} needs root: give a port above 1023 with {key} in server.toml"
        return (
            f"{where} cannot be listened on ({error.strerror}): `listen` in server.toml must be an "
            "address of this machine"
        )
    return f"{where} is taken or not an address of this machine"
