"""Serves Fleet.Download and Fleet.Upload, blobs to and from agents, without copying chunks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc

from ...errors import ProtocolError, StoreError, UnreachableError
from ...transport import fleet_pb2 as pb
from ...transport.blobs import CHUNK_BYTES, Receiver, blob_path
from ...transport.chunk_reader import ChunkReader
from ...transport.chunk_wire import Piece, pack_chunk, unpack_upload
from .calls import FirstMessages, parse
from .dispatch import Dispatcher
from .floods import Floods
from .peer_auth import Callers, Context
from .spool import Spool
from .steps import Pending
from .stream_limiter import Slots

__all__ = ["BulkService", "fair_chunk_bytes", "open_in_thread", "window_bytes"]

STEPS_AT_ONCE = 4
CHUNKS_BYTES = 4 << 20
CHUNK_BYTES_MIN = 64 << 10
WISH_BYTES_MIN = 4 << 10
WINDOWS_BYTES = 16 << 20
WINDOW_BYTES_MIN = 64 << 10
"""What every HTTP/2 stream begins with."""
WINDOW_BYTES_MAX = 512 << 10
"""Holds what is in transit at 20 Mbit/s and 200 ms."""
ACKNOWLEDGED = 256
"""Bytes that a download sends per byte that its receiver sends, to acknowledge them."""
TRANSFERS_AT_ONCE_MAX = 8
"""Bound per client."""


File = TypeVar("File", Receiver, ChunkReader)


def fair_chunk_bytes(peers: int) -> int:
    """Return the chunk size, in bytes, with which `peers` clients may send or receive at once.

    A slow peer keeps one chunk in memory. All of them together stay within a bound, until the
    number of peers makes chunks smaller than `CHUNK_BYTES_MIN`.
    """
    return max(CHUNK_BYTES_MIN, min(CHUNK_BYTES, CHUNKS_BYTES // max(1, peers)))


def window_bytes(peers: int) -> int:
    """Return how many bytes a client may send ahead of the chunk that is being received.

    With less than what is in transit on its line, a sender pauses between two chunks until the
    server's permission has come back. What is sent ahead is in the server's memory while its steps
    are busy, so many peers get less each; their lines are filled by being many.
    """
    return max(WINDOW_BYTES_MIN, min(WINDOW_BYTES_MAX, WINDOWS_BYTES // max(1, peers)))


class BulkService:
    """Serves Fleet.Download and Fleet.Upload."""

    def __init__(
        self,
        callers: Callers,
        dispatcher: Dispatcher,
        spool: Spool,
        first_messages: FirstMessages,
        floods: Floods,
    ) -> None:
        self._floods = floods
        self._callers = callers
        self._first_messages = first_messages
        self._dispatcher = dispatcher
        self._spool = spool
        self._transfers: Counter[int] = Counter()
        self._uploads: dict[tuple[int, str], tuple[asyncio.Task[Any], asyncio.Timeout]] = {}
        self._slots = Slots(STEPS_AT_ONCE)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return the handlers of these calls, which receive and return raw messages."""
        return {
            "Download": grpc.stream_stream_rpc_method_handler(self.download),
            "Upload": grpc.stream_unary_rpc_method_handler(
                self.upload, response_serializer=pb.UploadState.SerializeToString
            ),
        }

    async def download(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Stream a blob that an open instruction of this client names, from an offset."""
        site = await self._callers.site(context)
        with self._transfer(site.node_id):
            first = await self._first_messages.next(requests, site.node_id)
            await self._download(parse(pb.DownloadRequest, first), site.node_id, context)

    async def _download(self, request: pb.DownloadRequest, node_id: int, context: Context) -> None:
        found = self._dispatcher.blob(node_id, request.blob_id)
        if found is None:
            text = f"no open instruction names blob {request.blob_id[:80]!r}"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        run_id, blob, folder = found
        if request.offset > blob.size_bytes:
            text = f"offset {request.offset} is past the end, {blob.size_bytes}"
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, text)
        path = blob_path(folder, blob.id)
        wish, peer = request.chunk_bytes or CHUNK_BYTES, context.peer()
        async with open_in_thread(partial(ChunkReader, path, request.offset)) as reader:
            send = partial(self._send, reader, context, wish)
            while sent := await self._slots.step(node_id, send):
                self._spool.count(run_id, sent=sent)
                self._floods.useful(peer, sent // ACKNOWLEDGED)

    async def upload(self, requests: AsyncIterator[bytes], context: Context) -> pb.UploadState:
        """Receive a blob for an open instruction of this client; an interrupted upload goes on."""
        site = await self._callers.site(context)
        with self._transfer(site.node_id):
            opened = _opening(await self._first_messages.next(requests, site.node_id))
            item = self._dispatcher.owed(site.node_id, opened.instruction_id)
            closed = f"instruction {opened.instruction_id[:80]!r} is not open for {site.name}"
            if item is None:
                await context.abort(grpc.StatusCode.NOT_FOUND, closed)
            async with self._newest(site.node_id, opened.blob.id):
                state = await self._take_while_open(requests, opened, item, context)
            if state is None:
                await context.abort(grpc.StatusCode.NOT_FOUND, closed)
            return state

    async def _take_while_open(
        self,
        requests: AsyncIterator[bytes],
        opened: pb.UploadOpen,
        item: Pending,
        context: Context,
    ) -> pb.UploadState | None:
        """Receive a blob; return None as soon as its instruction is no longer open.

        It closes when it is answered, or when its step or run ends. The received part is then
        deleted, unless the answer names this blob.
        """
        own = asyncio.current_task()
        assert own is not None
        if not self._is_open(item):
            return None
        item.uploads.add(own)
        try:
            return await self._take(requests, opened, item, context)
        except (asyncio.CancelledError, OSError, StoreError):  # the run's spool may be gone
            if self._is_open(item):
                raise
            if opened.blob.id not in item.named:
                run_id, id_ = item.instruction.run_id, item.instruction.id
                await asyncio.to_thread(self._spool.give_up, run_id, id_, opened.blob.id)
            return None
        finally:
            item.uploads.discard(own)

    def _is_open(self, item: Pending) -> bool:
        return self._dispatcher.owed(item.node_id, item.instruction.id) is item

    async def _take(
        self,
        requests: AsyncIterator[bytes],
        opened: pb.UploadOpen,
        item: Pending,
        context: Context,
    ) -> pb.UploadState:
        run_id = item.instruction.run_id
        async with open_in_thread(partial(self._open, item, opened)) as receiver:
            if receiver.received_bytes != opened.offset and not receiver.complete:
                await _go_on_from(receiver.received_bytes, context)
            before, clock = receiver.received_bytes, asyncio.get_running_loop().time
            begun_s = clock()
            try:
                if not receiver.complete:
                    await self._receive(requests, receiver, item, context.peer())
            finally:
                self._spool.count(run_id, received=receiver.received_bytes - before)
            item.received_bytes += receiver.received_bytes - before
            item.receiving_s += clock() - begun_s
            complete = receiver.complete
            if complete:
                await self._finish(receiver, context)
                await self._dispatcher.lines.measured(
                    item.node_id, item.received_bytes, item.receiving_s
                )
            return pb.UploadState(received_bytes=receiver.received_bytes, complete=complete)

    @asynccontextmanager
    async def _newest(self, node_id: int, blob_id: str) -> AsyncIterator[None]:
        """End an earlier upload of the same blob, as its connection may be lost unnoticed.

        Raises:
            UnreachableError: a later upload has ended this one. A bare cancellation would leave
                the call unanswered, and gRPC would keep it and its partly received message.
        """
        key, own = (node_id, blob_id), asyncio.current_task()
        assert own is not None
        earlier = self._uploads.get(key)
        try:
            async with asyncio.timeout(None) as limit:
                self._uploads[key] = own, limit
                if earlier is not None:
                    earlier[1].reschedule(asyncio.get_running_loop().time())
                    await asyncio.wait([earlier[0]])
                yield
        except TimeoutError:
            raise UnreachableError("a later upload of this blob has taken its place") from None
        finally:
            if self._uploads.get(key) == (own, limit):
                del self._uploads[key]

    async def _finish(self, receiver: Receiver, context: Context) -> None:
        try:
            await asyncio.to_thread(receiver.finish)
        except ProtocolError:
            if not receiver.resumed:
                raise
            await _go_on_from(0, context)  # after a power cut, a part may have wrong bytes

    async def _send(self, reader: ChunkReader, context: Context, wish_bytes: int) -> int:
        """Send the next piece and return its size in bytes; 0 at the end."""
        fair_bytes = fair_chunk_bytes(self._transfers.total())
        size = min(fair_bytes, max(WISH_BYTES_MIN, wish_bytes))
        try:
            piece = reader.read_cached(size)
        except BlockingIOError:
            piece = await asyncio.to_thread(reader.read, size)
        if piece is None:
            return 0
        await context.write(pack_chunk(piece))
        return len(piece.data)

    @contextmanager
    def _transfer(self, node_id: int) -> Iterator[None]:
        if self._transfers[node_id] >= TRANSFERS_AT_ONCE_MAX:
            text = f"{TRANSFERS_AT_ONCE_MAX} transfers are under way already; try again"
            raise UnreachableError(text)  # so that the agent waits and tries again
        self._transfers[node_id] += 1
        try:
            yield
        finally:
            self._transfers[node_id] -= 1

    def _open(self, item: Pending, opened: pb.UploadOpen) -> Receiver:
        run_id = item.instruction.run_id
        folder = self._spool.make_room(
            run_id,
            opened.instruction_id,
            opened.blob,
            node_id=item.node_id,
            sent_bytes=self._dispatcher.sent_bytes(run_id),
        )
        size_max, file_pool = self._spool.blob_bytes_max, self._spool.file_pool
        return Receiver(folder, opened.blob, size_max=size_max, file_pool=file_pool)

    async def _receive(
        self,
        requests: AsyncIterator[bytes],
        receiver: Receiver,
        item: Pending,
        peer: str,
    ) -> None:
        writing: asyncio.Future[None] | None = None
        try:
            while (
                piece := await self._slots.step(item.node_id, partial(_receive_next, requests))
            ) is not None:
                self._floods.useful(peer, len(piece.data))
                if writing is not None:
                    await writing
                writing = asyncio.ensure_future(asyncio.to_thread(receiver.write, piece))
                self._dispatcher.renew_lease(item.node_id, item.instruction.id)
        finally:
            if writing is not None:
                await asyncio.wait([writing])  # a file that is being written to is not closed
        if writing is not None:
            await writing


@asynccontextmanager
async def open_in_thread(open_: Callable[[], File]) -> AsyncIterator[File]:
    """Open a file in a thread, and close it in the end even if the caller is cancelled."""
    opening = asyncio.ensure_future(asyncio.to_thread(open_))
    try:
        file = await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        if opening.exception() is None:
            opening.result().close()
        raise
    with closing(file):
        yield file


async def _go_on_from(offset: int, context: Context) -> NoReturn:
    """End the call with the offset from which the sender is to go on."""
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"offset={offset}")
    raise AssertionError("abort always raises")


def _opening(message: bytes) -> pb.UploadOpen:
    opened = unpack_upload(message)
    if not isinstance(opened, pb.UploadOpen):
        raise ProtocolError("an upload begins with open")
    return opened


async def _receive_next(requests: AsyncIterator[bytes]) -> Piece | None:
    """Return the next piece; None at the end."""
    message = await anext(requests, None)
    if message is None:
        return None
    piece = unpack_upload(message)
    if not isinstance(piece, Piece):
        raise ProtocolError("an upload opens once")
    return piece
