"""The agent: a client's network process, which runs for as long as the device does.

    DIR/client.toml     the owner's: apps, data, device, policy
    DIR/identity/       who this client is
    DIR/agent.sqlite    recorded replies, and the owner's ledger
    DIR/blobs/          the newest tensors from the server
    DIR/runs/           tensors of replies, and the apps' client state
    DIR/spare/          unneeded files, for reuse
    DIR/ranks/          rendezvous of a group of training processes
    DIR/training.log    output of the training process
    DIR/agent.lock      held while an agent runs

It imports neither torch nor an app. It holds one stream to the server. Instructions arrive on the
stream, are executed one after another, and are answered exactly once, even if processes die.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from ... import __version__
from ...apps.folder import content_hash
from ...errors import ConfigError, IdentityError, MeadowError, UnreachableError
from ...transport import fleet_pb2 as pb
from ...transport.address import Address
from ...transport.fleet_pb2 import Welcome
from ...transport.metrics_listener import MetricsListener
from ...transport.tracing import traces_of
from ..owner.database import AgentDatabase
from ..owner.gate import Gate
from ..owner.identity_folder import ClientIdentity, IdentityFolder
from ..owner.ledger import Ledger
from ..owner.owner import Owner
from ..owner.sent_log import SentLog
from .assignments import Assignments
from .clock import Clock, clock_fault
from .connection import Connection
from .delivery import Deliveries
from .events import Event, Report
from .execution import Execution
from .line import LineState
from .lock import hold_lock
from .reconnecting import Outage, Routes
from .state import AgentState
from .token_bucket import TokenBucket
from .training import Trainer
from .uplink import Uplink
from .warm_process import WarmProcess

__all__ = ["Agent", "Leaves"]

RENEWAL_CHECK_S = 3600.0
LEASE_S_MIN = 1.0
LEASE_S_MAX = 3600.0
LEAVES_EVERY_S = 0.2
"""A relay sends the clients below it at most so often."""
STEADY_S = 15.0
"""After a connection that lasted this long, or carried data, the agent reconnects at once."""


class Leaves(Protocol):
    """The clients below a relay."""

    def node_ids(self) -> list[int]:
        """Return those that are there."""

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when they may have changed; return how to unsubscribe."""


class Agent:
    """One client's agent; many of them may run in one process."""

    def __init__(
        self,
        directory: Path | str,
        *,
        trainer: Trainer | None = None,
        report: Report = lambda event: None,
        clock: Callable[[], float] = time.time,
        leaves: Leaves | None = None,
    ) -> None:
        """Prepare an agent on its folder; the default `trainer` is a training process. A relay's
        agent has `leaves`, the clients below it."""
        self._directory = Path(directory)
        self._trainer = trainer
        self._report = report
        self._clock = clock
        self._leaves = leaves
        self._identities = IdentityFolder(self._directory)
        self._uplink = Uplink()
        self._line = LineState()
        self._routes = Routes()
        self._stopping = asyncio.Event()
        self._renewed = False
        self._connections = 0
        self._server_clock = Clock()
        self._clock_told: str | None = None

    def stop(self) -> None:
        """Let `run` return soon; unfinished work continues after the next start."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until `stop`.

        Raises:
            IdentityError: the server has revoked this client, or its certificate is not usable.
            ConfigError: it is not enrolled, or client.toml is wrong.
            StoreError: another agent runs on the folder, its disk fails, or its ledger is missing.
            UnreachableError: monitoring.metrics_port is taken.
        """
        identity = self._identities.load()
        with hold_lock(self._directory):
            owner = Owner(self._directory, content_hash)
            for app, found in owner.apps().items():
                if isinstance(found, MeadowError):
                    self._report(Event(kind="warning", text=f"app {app}: {found}"))
            (self._directory / "blobs").mkdir(exist_ok=True)
            database = AgentDatabase(self._directory / "agent.sqlite")
            log = self._directory / "training.log"
            trainer = self._trainer or WarmProcess(
                owner, node_id=identity.node_id, log=log, report=self._report
            )
            try:
                await asyncio.to_thread(database.check)
                ledger = Ledger(database)
                ledger.claim(self._identities.folder)
                await self._serve(owner, database, ledger, trainer)
            finally:
                await trainer.close()
                database.close()

    async def _serve(
        self, owner: Owner, database: AgentDatabase, ledger: Ledger, trainer: Trainer
    ) -> None:
        state = AgentState(database, self._directory)
        state.file_pool.clear()
        sent = SentLog(self._directory, clock=self._clock)
        deliveries = Deliveries(self._uplink, state, sent, self._report)
        execution = Execution(
            owner=owner,
            ledger=ledger,
            state=state,
            trainer=trainer,
            uplink=self._uplink,
            blob_dir=self._directory / "blobs",
            report=self._report,
            clock=self._clock,
            relays=self._leaves is not None,
        )
        gate = Gate(self._directory, lambda: owner.config().policy, clock=self._clock)
        identity = self._identities.load()
        traces = traces_of("meadow-agent", lambda: identity.ca_pem)
        assignments = Assignments(
            execution, deliveries, state, self._uplink, gate, self._report,
            begin_span=partial(traces.received, client=identity.node_id),
        )  # fmt: skip
        listener = await self._listen_for_metrics(
            owner, ledger, gate, trainer, assignments, deliveries
        )
        tasks = [
            asyncio.create_task(self._stay_connected(owner, assignments, gate)),
            asyncio.create_task(assignments.work()),
            asyncio.create_task(assignments.redeliver()),
            asyncio.create_task(_prepare(owner, trainer)),
        ]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await _until_first_failure(tasks, stopping)
        finally:
            for task in (*tasks, stopping):
                task.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)
            if listener is not None:
                await listener.close()
            await deliveries.close()
            sent.close()
            state.close()

    async def _listen_for_metrics(
        self,
        owner: Owner,
        ledger: Ledger,
        gate: Gate,
        trainer: Trainer,
        assignments: Assignments,
        deliveries: Deliveries,
    ) -> MetricsListener | None:
        """Listen for the site's Prometheus, where client.toml says so."""
        port = owner.config().monitoring.metrics_port
        if port is None:
            return None
        from .monitoring import AgentMonitoring  # imports the client of Prometheus

        monitoring = AgentMonitoring(
            owner=owner,
            identities=self._identities,
            ledger=ledger,
            gate=gate,
            trainer=trainer,
            assignments=assignments,
            deliveries=deliveries,
            line=self._line,
            connections=lambda: (self._connections, self._uplink.attached),
        )
        address = Address("127.0.0.1", port)
        listener = MetricsListener(monitoring.scraped, key="monitoring.metrics_port")
        await listener.start(address)
        self._report(Event(kind="listening", text=f"metrics at http://{address}/metrics"))
        return listener

    # ------------------------------------------------------------------ the connection

    async def _stay_connected(self, owner: Owner, assignments: Assignments, gate: Gate) -> None:
        attempt, outages = 0, defaultdict[str, Outage](lambda: Outage(self._report))
        bucket = TokenBucket(_Bandwidth(owner))
        self._routes.update([self._identities.load().fleet_address])
        while True:
            if why := await asyncio.to_thread(gate.closed_by):
                self._report(Event(kind="paused", text=f"not connected: {why}"))
                await gate.until_open()
                attempt = 0
            identity = self._identities.load()
            with suppress(ConfigError):  # a mistake in client.toml does not end the connection
                self._routes.update(owner.config().server.tried(identity.fleet_address))
            address, welcomed = self._routes.present, False
            since_s, carried = time.monotonic(), self._line.carried_bytes
            self._renewed = False
            try:
                credentials = identity.credentials()
                async with Connection(address, credentials, self._line, bucket) as connection:
                    sent_s = self._clock()
                    relay = self._leaves is not None
                    welcome = await connection.hello(identity.name, __version__, relay=relay)
                    welcomed = True
                    self._connections += 1
                    outages.clear()
                    self._compare_clocks(welcome, sent_s)
                    await self._converse(connection, identity, welcome, assignments, gate)
            except IdentityError:
                raise
            except MeadowError as error:
                self._check_certificate(identity)
                if not self._renewed and not await asyncio.to_thread(gate.closed_by):
                    await outages[address].tell(
                        error, address, identity.ca_pem, welcomed=welcomed, now_s=self._clock()
                    )
            finally:
                self._uplink.detach()
            useful = self._renewed or self._line.carried_bytes > carried
            steady = useful or time.monotonic() - since_s > STEADY_S
            attempt = 0 if steady else attempt + 1
            if not (welcomed and steady):
                self._routes.turn()
            await asyncio.sleep(0.0 if self._renewed else self._routes.delay_s(attempt))

    async def _converse(
        self,
        connection: Connection,
        identity: ClientIdentity,
        welcome: Welcome,
        assignments: Assignments,
        gate: Gate,
    ) -> None:
        """Handle the server's messages until the stream ends, which raises the cause."""
        assignments.lease_s = bounded_lease_s(welcome.lease_s)
        self._uplink.attach(connection)
        text = f"connected to {connection.address} as {identity.name} (node {welcome.node_id})"
        self._report(Event(kind="connected", text=text, detail={"node_id": welcome.node_id}))
        renewing = asyncio.create_task(self._keep_certificate(connection))
        closing = asyncio.create_task(gate.until_closed())
        telling = asyncio.create_task(self._tell_leaves(connection))
        closing.add_done_callback(lambda ended: None if ended.cancelled() else connection.hang_up())
        try:
            while True:
                message = await connection.receive()
                kind = message.WhichOneof("kind")
                if kind == "instruction":
                    await assignments.accept(message.instruction)
                elif kind == "ack":
                    assignments.confirm(message.ack.instruction_id)
                elif kind == "cancel":
                    await assignments.cancel(message.cancel)
        finally:
            renewing.cancel()
            closing.cancel()
            telling.cancel()

    async def _tell_leaves(self, connection: Connection) -> None:
        """Send which clients are below, now and after each change."""
        if self._leaves is None:
            return
        changed, told = asyncio.Event(), None
        changed.set()
        unsubscribe = self._leaves.on_change(changed.set)
        try:
            while await changed.wait():
                changed.clear()
                present = self._leaves.node_ids()
                if present != told:
                    leaves = pb.Leaves(node_ids=present)
                    await connection.send(pb.AgentMessage(leaves=leaves))
                    told = present
                await asyncio.sleep(LEAVES_EVERY_S)
        except UnreachableError:  # they are sent again on the next connection
            pass
        finally:
            unsubscribe()

    # ------------------------------------------------------------------ the certificate

    def _compare_clocks(self, welcome: Welcome, sent_s: float) -> None:
        self._server_clock.compare(welcome.server_time_s, sent_s=sent_s, received_s=self._clock())
        fault = clock_fault(self._server_clock.skew_s)
        if fault is not None and fault != self._clock_told:
            self._report(Event(kind="warning", text=fault))
        self._clock_told = fault

    def _server_now(self) -> datetime:
        """Return the estimated time of the server's clock, by which certificates are valid."""
        return datetime.fromtimestamp(self._server_clock.server_s(self._clock()), UTC)

    def _check_certificate(self, identity: ClientIdentity) -> None:
        """Check that the certificate of a client that a server refused is still valid.

        Raises:
            IdentityError: the certificate has expired.
        """
        now = self._server_now()
        until = identity.certificate.not_after
        if now > until:
            raise IdentityError(
                f"the certificate of {identity.name} expired on {until:%Y-%m-%d %H:%M} UTC, and this "
                f"machine's clock says {now:%Y-%m-%d %H:%M} UTC; if that is right, ask the server's "
                "operator for a token and enrol again"
            )

    async def _keep_certificate(self, connection: Connection) -> None:
        """Renew the certificate in time; then hang up, to reconnect with the new one."""
        while True:
            identity = self._identities.load()
            if identity.certificate.needs_renewal(self._server_now()):
                try:
                    await self._renew(connection, identity)
                    return
                except MeadowError as error:
                    text = f"the certificate was not renewed: {error}; trying again in an hour"
                    self._report(Event(kind="warning", text=text))
            await asyncio.sleep(RENEWAL_CHECK_S)

    async def _renew(self, connection: Connection, identity: ClientIdentity) -> None:
        request_pem = await asyncio.to_thread(self._identities.begin_renewal, identity.name)
        certificate = await connection.renew(request_pem)
        await asyncio.to_thread(self._identities.finish_renewal, certificate.certificate_pem)
        self._report(Event(kind="renewed", text="the certificate was renewed"))
        self._renewed = True
        connection.hang_up()


class _Bandwidth:
    """The owner's bound in bytes per second; the last one while client.toml has a mistake."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._last: int | None = None

    def __call__(self) -> int | None:
        with suppress(MeadowError):
            self._last = self._owner.config().policy.bandwidth_bytes_per_s_max
        return self._last


async def _prepare(owner: Owner, trainer: Trainer) -> None:
    """Load the app before its first instruction, if only one is installed."""
    with suppress(MeadowError, OSError):
        apps = list(owner.config().apps)
        if len(apps) == 1:
            await trainer.prepare(apps[0])


async def _until_first_failure(
    tasks: list[asyncio.Task[None]], stopping: asyncio.Task[bool]
) -> None:
    """Wait until a task fails, and raise its error, or until the agent is to stop."""
    waiting: set[asyncio.Task[None] | asyncio.Task[bool]] = {*tasks, stopping}
    while not stopping.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


def bounded_lease_s(told: float) -> float:
    """Return the length of a lease in seconds within its bounds; the longest for NaN."""
    return max(LEASE_S_MIN, min(LEASE_S_MAX, told))
