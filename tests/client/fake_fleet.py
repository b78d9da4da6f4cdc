"""A fleet listener for tests: real TLS and real blobs, and faults on demand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio

from meadow.transport import fleet_pb2 as pb
from meadow.transport.authority import Authority
from meadow.transport.blobs import Receiver, blob_path, chunks
from meadow.transport.fleet_pb2_grpc import FleetServicer, add_FleetServicer_to_server
from meadow.transport.identity import identity_of
from meadow.transport.protocol import PROTOCOL_VERSION
from meadow.transport.tls import server_credentials

LEASE_S = 60.0
PATIENCE_S = 60.0


class FakeFleet(FleetServicer):
    """One server: what it was told is in its attributes, and `changed` says that they grew."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.create(now=datetime.now(UTC))
        self.blobs = folder / "server-blobs"
        self.received = folder / "server-received"
        self.blobs.mkdir()
        self.received.mkdir()
        self.port = 0
        self.open: dict[str, pb.Instruction] = {}
        self.hellos: list[pb.Hello] = []
        self.serials: list[str] = []
        self.replies: list[pb.Reply] = []
        self.progress: list[str] = []
        self.downloads: list[tuple[str, int]] = []
        self.uploads: list[tuple[str, int]] = []
        self.renewals = 0
        self.changed = asyncio.Condition()
        # faults
        self.ahead = timedelta()
        """How far its clock is ahead."""
        self.acks_lost = 0
        self.upload_breaks_after_bytes: int | None = None
        self.download_breaks_after_bytes: int | None = None
        self.revoked = False
        self.speaks = PROTOCOL_VERSION
        self.gone: set[str] = set()
        self.blob_bytes_max = 1 << 40
        self._streams: list[asyncio.Queue[pb.ServerMessage | None]] = []
        self._server: grpc.aio.Server | None = None

    # ------------------------------------------------------------------ for tests

    async def start(self) -> None:
        """Listen, on the same port as before if this is a restart."""
        now = datetime.now(UTC) + self.ahead
        pair = self.authority.issue_server(["localhost"], now=now, days=1)
        credentials = server_credentials(lambda: pair, ca_pem=self.authority.certificate_pem)
        self._server = grpc.aio.server(
            options=[("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)]
        )
        add_FleetServicer_to_server(self, self._server)
        self.port = self._server.add_secure_port(f"127.0.0.1:{self.port}", credentials)
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self._streams.clear()

    def certify(self, request_pem: bytes, days: float = 30.0) -> pb.Certificate:
        """Sign a client's request as the site called site-1."""
        pem = self.authority.issue_client(
            request_pem, name="site-1", now=datetime.now(UTC), days=days
        )
        return pb.Certificate(
            certificate_pem=pem,
            ca_pem=self.authority.certificate_pem,
            client="site-1",
            node_id=1,
            fleet_address=f"localhost:{self.port}",
        )

    def send(self, instruction: pb.Instruction) -> None:
        """Give the agent an instruction, now and after every reconnect until it is answered."""
        self.open[instruction.id] = instruction
        self.say(pb.ServerMessage(instruction=instruction))

    def say(self, message: pb.ServerMessage) -> None:
        """Send a message on every stream."""
        for stream in self._streams:
            stream.put_nowait(message)

    def disconnect(self) -> None:
        """End every stream."""
        for stream in self._streams:
            stream.put_nowait(None)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition on this server's attributes holds."""
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(condition)

    async def reply(self, instruction_id: str, count: int = 1) -> pb.Reply:
        """Wait until the reply to an instruction came `count` times; return the last."""

        def found() -> list[pb.Reply]:
            return [r for r in self.replies if r.instruction_id == instruction_id]

        await self.until(lambda: len(found()) >= count)
        return found()[-1]

    async def _note(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    # ------------------------------------------------------------------ the service

    async def Connect(
        self, requests: AsyncIterator[pb.AgentMessage], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ServerMessage]:
        first = await anext(requests)
        if self.revoked:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this client was revoked")
        if first.hello.protocol != self.speaks:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another protocol")
        self.hellos.append(first.hello)
        self.serials.append(identity_of(context.auth_context()["x509_pem_cert"][0]).serial)
        stream: asyncio.Queue[pb.ServerMessage | None] = asyncio.Queue()
        self._streams.append(stream)
        reading = asyncio.create_task(self._read(requests, stream))
        yield pb.ServerMessage(
            welcome=pb.Welcome(
                node_id=1, lease_s=LEASE_S, server_time_s=time.time() + self.ahead.total_seconds()
            )
        )
        for instruction in self.open.values():
            yield pb.ServerMessage(instruction=instruction)
        await self._note()
        try:
            while (message := await stream.get()) is not None:
                yield message
        finally:
            reading.cancel()
            if stream in self._streams:
                self._streams.remove(stream)
        code = grpc.StatusCode.PERMISSION_DENIED if self.revoked else grpc.StatusCode.UNAVAILABLE
        await context.abort(code, "this client was revoked" if self.revoked else "going away")

    async def _read(
        self,
        requests: AsyncIterator[pb.AgentMessage],
        stream: asyncio.Queue[pb.ServerMessage | None],
    ) -> None:
        async for message in requests:
            if message.HasField("progress"):
                self.progress.append(message.progress.instruction_id)
            elif message.HasField("reply"):
                self.replies.append(message.reply)
                self.open.pop(message.reply.instruction_id, None)
                if self.acks_lost:
                    self.acks_lost -= 1
                    stream.put_nowait(None)
                else:
                    ack = pb.ReplyAck(instruction_id=message.reply.instruction_id)
                    stream.put_nowait(pb.ServerMessage(ack=ack))
            await self._note()

    async def Download(
        self, request: pb.DownloadRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.Chunk]:
        self.downloads.append((request.blob_id, request.offset))
        path = blob_path(self.blobs, request.blob_id)
        if not path.exists():
            await context.abort(grpc.StatusCode.NOT_FOUND, "no open instruction names it")
        sent = 0
        for chunk in chunks(path, request.offset):
            yield pb.Chunk(offset=chunk.offset, data=bytes(chunk.data))
            sent += len(chunk.data)
            bound = self.download_breaks_after_bytes
            if bound is not None and sent >= bound:
                self.download_breaks_after_bytes = None
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the line broke")

    async def Upload(
        self, requests: AsyncIterator[pb.UploadMessage], context: grpc.aio.ServicerContext
    ) -> pb.UploadState:
        opened = (await anext(requests)).open
        self.uploads.append((opened.blob.id, opened.offset))
        if opened.instruction_id in self.gone:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the instruction is not open")
        if opened.blob.size_bytes > self.blob_bytes_max:
            text = f"{opened.blob.size_bytes} bytes exceeds {self.blob_bytes_max}"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        with Receiver(self.received, opened.blob, size_max=1 << 40) as receiver:
            if receiver.complete:
                receiver.finish()
                return pb.UploadState(received_bytes=receiver.received_bytes, complete=True)
            if receiver.received_bytes != opened.offset:
                text = f"offset={receiver.received_bytes}"
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            async for message in requests:
                receiver.write(message.chunk)
                bound = self.upload_breaks_after_bytes
                if bound is not None and receiver.received_bytes >= bound:
                    self.upload_breaks_after_bytes = None
                    await self._note()
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the line broke")
            if receiver.complete:
                receiver.finish()
            state = pb.UploadState(
                received_bytes=receiver.received_bytes, complete=receiver.complete
            )
        return state

    async def Renew(
        self, request: pb.RenewRequest, context: grpc.aio.ServicerContext
    ) -> pb.Certificate:
        self.renewals += 1
        return self.certify(request.csr_pem)
