"""The fleet listener: what enrolled agents may call, and who they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import islice
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio

from ..errors import IdentityError, LimitError, MeadowError, ProtocolError, StoreError
from ..transport import fleet_pb2 as pb
from ..transport.blobs import Receiver, blob_path, chunks
from ..transport.fleet_pb2_grpc import FleetServicer
from ..transport.identity import Identity, Role, peer_identity
from .dispatch import Dispatcher
from .journal import Journal, SiteRow
from .links import AgentLink, Links
from .spool import Spool
from .threads import JournalThread

__all__ = ["PROTOCOL_VERSIONS", "FleetService", "REVOKED", "caller"]

PROTOCOL_VERSIONS = (1,)
HELLO_WAIT_S = 30.0
CHUNKS_PER_HOP = 8
Context = grpc.aio.ServicerContext[Any, Any]


class Issuer(Protocol):
    """Signs a client's request; the enrolment service and renewal share it."""

    async def certify(self, name: str, csr_pem: bytes) -> pb.Certificate: ...


def caller(context: Context, *, role: Role) -> Identity:
    """Return who is calling, from the certificate that the TLS handshake has verified.

    Raises:
        IdentityError: there is no certificate, or it was issued for another role.
    """
    identity = peer_identity(context.auth_context())
    if identity.role != role:
        raise IdentityError(f"{identity.name} is {identity.role!r}, not {role!r}")
    return identity


class FleetService(FleetServicer):
    """Serves agents: one stream of instructions and replies each, and blobs beside it."""

    def __init__(
        self,
        journal: Journal,
        thread: JournalThread,
        links: Links,
        dispatcher: Dispatcher,
        spool: Spool,
        issuer: Issuer,
        *,
        lease_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._thread = thread
        self._links = links
        self._dispatcher = dispatcher
        self._spool = spool
        self._issuer = issuer
        self._lease_s = lease_s
        self._clock = clock

    # ------------------------------------------------------------------ who is it

    async def _site(self, context: Context, claimed: str | None = None) -> SiteRow:
        """Return the caller's site; end the call if it may not be here."""
        try:
            identity = caller(context, role="client")
        except IdentityError as error:
            await self._denials.record({"call": "fleet", "reason": str(error)})
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        site = self._links.site(identity.name)
        problem = _problem(site, identity, claimed, self._clock())
        if site is None or problem:
            said = None if claimed is None else claimed[:80]
            await self._denials.record(
                {"client": identity.name, "claimed": said, "reason": problem}
            )
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem or "unknown client")
        return site

    # ------------------------------------------------------------------ the stream

    async def Connect(
        self, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> AsyncIterator[pb.ServerMessage]:
        """One agent's stream: hello, then instructions out, progress and replies in."""
        hello = await self._hello(requests, context)
        site = await self._site(context, claimed=hello.client)
        link = AgentLink(site.node_id, site.name)
        now_s = self._clock()
        await self._thread(
            self._journal.seen, site.node_id, connected=True, now_s=now_s, version=hello.version[:40]
        )
        link.send(
            pb.ServerMessage(
                welcome=pb.Welcome(
                    node_id=site.node_id, lease_s=self._lease_s, server_time_s=now_s
                )
            )
        )
        self._links.add(link)
        self._dispatcher.connected(link)
        reading = asyncio.create_task(self._read(requests, link))
        try:
            while (message := await link.outgoing.get()) is not None:
                yield message
        finally:
            reading.cancel()
            if self._links.remove(link):
                await self._thread(
                    self._journal.seen, site.node_id, connected=False, now_s=self._clock()
                )
        revoked = link.closed_because == REVOKED
        code = grpc.StatusCode.PERMISSION_DENIED if revoked else grpc.StatusCode.UNAVAILABLE
        await context.abort(code, link.closed_because or "the stream ended")

    async def _hello(
        self, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> pb.Hello:
        try:
            async with asyncio.timeout(HELLO_WAIT_S):
                first = await anext(requests)
        except (TimeoutError, StopAsyncIteration):
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no hello")
        if not first.HasField("hello"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message is no hello")
        if first.hello.protocol not in PROTOCOL_VERSIONS:
            text = f"protocol {first.hello.protocol} is not spoken here, only {PROTOCOL_VERSIONS}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        return first.hello

    async def _read(self, requests: AsyncIterator[pb.AgentMessage], link: AgentLink) -> None:
        reason = "the agent closed its side"
        try:
            async for message in requests:
                if message.HasField("progress"):
                    self._dispatcher.renew_lease(link.node_id, message.progress.instruction_id)
                elif message.HasField("reply"):
                    await self._dispatcher.reply(link.node_id, message.reply)
                    ack = pb.ReplyAck(instruction_id=message.reply.instruction_id)
                    link.send(pb.ServerMessage(ack=ack))
        except grpc.RpcError:
            reason = "the connection was lost"
        except MeadowError as error:
            reason = str(error)
        link.close(reason)

    # ------------------------------------------------------------------ blobs

    async def Download(
        self, request: pb.DownloadRequest, context: Context
    ) -> AsyncIterator[pb.Chunk]:
        """Stream a blob that an open instruction of this client names, from an offset."""
        site = await self._site(context)
        found = self._dispatcher.blob(site.node_id, request.blob_id)
        if found is None:
            text = f"no open instruction names blob {request.blob_id[:80]!r}"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        run_id, blob = found
        if request.offset > blob.size_bytes:
            text = f"offset {request.offset} is past the end, {blob.size_bytes}"
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, text)
        pieces = chunks(blob_path(self._spool.outgoing(run_id), blob.id), request.offset)
        while batch := await asyncio.to_thread(_take, pieces):
            for chunk in batch:
                yield chunk
                self._spool.count(run_id, sent=len(chunk.data))

    async def Upload(
        self, requests: AsyncIterator[pb.UploadMessage], context: Context
    ) -> pb.UploadState:
        """Take a blob for an open instruction of this client, from where it stopped last time."""
        site = await self._site(context)
        first = await anext(requests, None)
        if first is None or not first.HasField("open"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an upload begins with open")
        opened = first.open
        try:
            run_id = self._dispatcher.run_of(site.node_id, opened.instruction_id)
            receiver = await asyncio.to_thread(self._open, run_id, opened)
            with receiver:
                if receiver.received_bytes != opened.offset and not receiver.complete:
                    text = f"offset={receiver.received_bytes}"
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
                if not receiver.complete:
                    await self._receive(requests, receiver, site.node_id, opened, run_id)
                if receiver.complete:
                    await asyncio.to_thread(receiver.finish)
                return pb.UploadState(
                    received_bytes=receiver.received_bytes, complete=receiver.complete
                )
        except MeadowError as error:
            await _abort(context, error)

    def _open(self, run_id: int, opened: pb.UploadOpen) -> Receiver:
        folder = self._spool.replies(run_id, opened.instruction_id)
        folder.mkdir(parents=True, exist_ok=True)
        return Receiver(folder, opened.blob, size_max=self._spool.blob_bytes_max)

    async def _receive(
        self,
        requests: AsyncIterator[pb.UploadMessage],
        receiver: Receiver,
        node_id: int,
        opened: pb.UploadOpen,
        run_id: int,
    ) -> None:
        batch: list[pb.Chunk] = []
        async for message in requests:
            batch.append(message.chunk)
            self._dispatcher.renew_lease(node_id, opened.instruction_id)
            if len(batch) == CHUNKS_PER_HOP:
                await asyncio.to_thread(_write, receiver, batch)
                self._spool.count(run_id, received=sum(len(c.data) for c in batch))
                batch = []
        await asyncio.to_thread(_write, receiver, batch)
        self._spool.count(run_id, received=sum(len(c.data) for c in batch))

    # ------------------------------------------------------------------ certificates

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.Certificate:
        """Issue the next certificate to a client that shows its present one."""
        site = await self._site(context)
        try:
            return await self._issuer.certify(site.name, request.csr_pem)
        except MeadowError as error:
            await _abort(context, error)


REVOKED = "this client was revoked; ask the server's operator for a new token"


def _problem(
    site: SiteRow | None, identity: Identity, claimed: str | None, now_s: float
) -> str | None:
    if site is None:
        return f"client {identity.name!r} is not enrolled here"
    if claimed is not None and claimed != identity.name:
        return f"the certificate is {identity.name!r}, not {claimed[:80]!r}"
    if site.revoked_at_s is not None:
        return REVOKED
    if identity.serial not in (site.serial, site.previous_serial):
        return f"this certificate of {identity.name!r} was replaced by a newer one"
    if identity.not_after.timestamp() < now_s:
        return f"the certificate of {identity.name!r} has expired"
    return None


def _take(pieces: Iterator[pb.Chunk]) -> list[pb.Chunk]:
    return list(islice(pieces, CHUNKS_PER_HOP))


def _write(receiver: Receiver, batch: list[pb.Chunk]) -> None:
    for chunk in batch:
        receiver.write(chunk)


async def _abort(context: Context, error: MeadowError) -> NoReturn:
    code = grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, LimitError):
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
    elif isinstance(error, ProtocolError | IdentityError):
        code = grpc.StatusCode.INVALID_ARGUMENT
    elif isinstance(error, StoreError):
        code = grpc.StatusCode.UNAVAILABLE
    await context.abort(code, str(error))
    raise AssertionError("abort always raises")
