"""The fleet listener: the calls of enrolled agents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import grpc
import grpc.aio

from ...errors import MeadowError
from ...machine.json_log import fields_of
from ...transport import fleet_pb2 as pb
from ...transport.fields import check_fields
from ...transport.protocol import PROTOCOL_VERSION
from ..journal.journal import Journal
from .agent_registry import RELAY_MARK, AgentLink, AgentRegistry
from .audit_limiter import Allowance
from .blob_service import fair_chunk_bytes
from .calls import FirstMessages, parse, unary_handler
from .dispatch import Dispatcher
from .failures import answer_of
from .floods import Floods
from .peer_auth import REVOKED, Callers, Context, caller
from .threads import JournalThread

__all__ = ["RENEWALS_MAX", "FleetService"]

LOG = logging.getLogger("meadow.server")
RENEWALS_MAX = 8
"""Renewals of one client's certificate at once; agents renew every few days."""
RENEWAL_EVERY_S = 900.0
"""After those, one renewal in this time."""


class Issuer(Protocol):
    """Signs a client's request; the enrolment service and renewal share it."""

    async def certify(
        self, name: str, csr_pem: bytes, *, shown: str | None = None
    ) -> pb.Certificate: ...


class FleetService:
    """Serves each agent's stream of instructions and replies, and renews certificates."""

    def __init__(
        self,
        journal: Journal,
        thread: JournalThread,
        agents: AgentRegistry,
        dispatcher: Dispatcher,
        issuer: Issuer,
        callers: Callers,
        first_messages: FirstMessages,
        floods: Floods,
        *,
        lease_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._thread = thread
        self._agents = agents
        self._dispatcher = dispatcher
        self._issuer = issuer
        self._callers = callers
        self._first_messages = first_messages
        self._floods = floods
        self._lease_s = lease_s
        self._clock = clock
        self._renewals = Allowance(burst=RENEWALS_MAX, every_s=RENEWAL_EVERY_S, clock=clock)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return the handlers of these calls."""
        return {
            "Connect": grpc.stream_stream_rpc_method_handler(
                self.connect, response_serializer=pb.ServerMessage.SerializeToString
            ),
            "Renew": unary_handler(
                pb.RenewRequest, self.renew, self._may_call, self._first_messages
            ),
        }

    # ------------------------------------------------------------------ the stream

    async def connect(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[pb.ServerMessage]:
        """Serve an agent's stream: hello, then instructions out, progress and replies in."""
        site = await self._callers.site(context)
        hello = await self._hello(site.node_id, requests, context)
        site = await self._callers.site(context, claimed=hello.client)
        now_s = self._clock()
        await self._thread(
            self._journal.sites.seen,
            site.node_id,
            connected=True,
            now_s=now_s,
            version=hello.version[:40].removesuffix(RELAY_MARK) + RELAY_MARK * hello.relay,
        )
        site = await self._callers.site(context)  # it may have been revoked meanwhile
        link = AgentLink(site.node_id, site.name, relay=hello.relay)
        link.send(
            pb.ServerMessage(
                welcome=pb.Welcome(
                    node_id=site.node_id,
                    lease_s=self._lease_s,
                    server_time_s=now_s,
                    chunk_bytes=fair_chunk_bytes(self._agents.enrolled),
                )
            )
        )
        LOG.info(
            "%s (node %d) is connected",
            site.name,
            site.node_id,
            extra=fields_of("connected", client=site.name, node=site.node_id),
        )
        self._agents.add(link)
        self._dispatcher.connected(link)
        reading = asyncio.create_task(self._read(requests, link, context.peer()))
        link.on_close = reading.cancel
        try:
            while (message := await link.outgoing.get()) is not None:
                yield message
        finally:
            reading.cancel()
            because = link.closed_because or "the connection was lost"
            shown = "".join(mark if mark.isprintable() else "?" for mark in because[:300])
            LOG.info(
                "%s is away: %s",
                site.name,
                shown,
                extra=fields_of("disconnected", client=site.name, node=site.node_id),
            )
            if self._agents.remove(link):
                await self._thread(
                    self._journal.sites.seen, site.node_id, connected=False, now_s=self._clock()
                )
        revoked = link.closed_because == REVOKED
        code = grpc.StatusCode.PERMISSION_DENIED if revoked else grpc.StatusCode.UNAVAILABLE
        await context.abort(code, link.closed_because or "the stream ended")

    async def _hello(
        self, node_id: int, requests: AsyncIterator[bytes], context: Context
    ) -> pb.Hello:
        """Receive the first message."""
        try:
            data = await self._first_messages.next(requests, node_id)
        except MeadowError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no hello arrived in time")
        first = parse(pb.AgentMessage, data)
        if not first.HasField("hello"):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first message is not a hello"
            )
        if first.hello.protocol != PROTOCOL_VERSION:
            await self._callers.refuse_protocol(context, first.hello)
        return first.hello

    async def _read(self, requests: AsyncIterator[bytes], link: AgentLink, peer: str) -> None:
        reason = "a message could not be read"
        try:
            async for data in requests:
                message = parse(pb.AgentMessage, data)
                check_fields(message)
                self._floods.useful(peer, len(data))
                if message.HasField("progress"):
                    self._dispatcher.renew_lease(link.node_id, message.progress.instruction_id)
                elif message.HasField("reply"):
                    await self._dispatcher.reply(link.node_id, message.reply)
                    ack = pb.ReplyAck(instruction_id=message.reply.instruction_id)
                    link.send(pb.ServerMessage(ack=ack))
                elif message.HasField("leaves"):
                    self._agents.set_leaves(link, message.leaves.node_ids)
            reason = "the agent closed its side"
        except grpc.RpcError:
            reason = "the connection was lost"
        except Exception as error:
            _, reason = answer_of(error, "Fleet.Connect")
        finally:
            link.close(reason)

    async def _may_call(self, context: Context) -> int:
        return (await self._callers.site(context)).node_id

    # ------------------------------------------------------------------ certificates

    async def renew(self, request: pb.RenewRequest, context: Context) -> pb.Certificate:
        """Issue the next certificate to a client that presents a valid one."""
        site = await self._callers.site(context)
        if not self._renewals.take(site.node_id):
            text = f"{RENEWALS_MAX} certificates were renewed lately; try again in an hour"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        shown = caller(context, role="client").serial
        return await self._issuer.certify(site.name, request.csr_pem, shown=shown)
