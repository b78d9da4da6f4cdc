"""Transfers blobs to and from the server, in chunks that use the full bandwidth.

A transfer is a blocking loop in its own thread, so threads switch once per file, not per chunk. It
holds only a few chunks in memory, and resumes where an earlier attempt stopped. Its measurements
of the line outlive the connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc

from ...errors import MeadowError, ProtocolError, StoreError, UnreachableError
from ...transport.blobs import Receiver, blob_path, chunks
from ...transport.chunk_wire import Piece, pack_upload_chunk, pack_upload_open, unpack_chunk
from ...transport.file_pool import FilePool
from ...transport.fleet_pb2 import Blob, DownloadRequest, UploadOpen, UploadState
from .line import LineState
from .rpc_errors import rpc_errors
from .token_bucket import TokenBucket

__all__ = ["Bulk"]

UPLOAD_SETBACKS_MAX = 3
PORTION_CHUNKS = 4
"""The chunks sent before the server confirms what it has, if connections break."""
T = TypeVar("T")
Started = Callable[["grpc.Future[Any]"], None]


class Bulk:
    """The calls that carry tensors, on a connection to one server."""

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        line: LineState | None = None,
        bucket: TokenBucket | None = None,
        *,
        blob_bytes_max: int,
    ) -> None:
        self._call_download = channel.unary_stream(
            "/meadow.v1.Fleet/Download",
            request_serializer=DownloadRequest.SerializeToString,
            response_deserializer=unpack_chunk,
        )
        self._call_upload = channel.stream_unary(
            "/meadow.v1.Fleet/Upload",
            request_serializer=bytes,
            response_deserializer=UploadState.FromString,
        )
        self._address = address
        self._line = line or LineState()
        self._bucket = bucket or TokenBucket(lambda: None)
        self._blob_bytes_max = blob_bytes_max

    async def download(self, blob: Blob, folder: Path, file_pool: FilePool | None = None) -> Path:
        """Fetch a blob into `folder`, into a file of `file_pool` if there is one.

        A part that was fetched earlier is not fetched again.

        Raises:
            UnreachableError: the connection was lost; the fetched part is kept.
            GoneError: the server no longer offers the blob.
            MeadowError: the blob is not what was announced, or cannot be stored.
        """
        return await _in_thread(lambda started: self._download(blob, folder, file_pool, started))

    async def upload(self, instruction_id: str, blob: Blob, path: Path) -> None:
        """Send a file, without the part that the server already has.

        Raises:
            UnreachableError: the connection was lost.
            MeadowError: the server refuses the blob, or the file is not there.
        """
        await _in_thread(lambda started: self._upload(instruction_id, blob, path, started))

    def _download(
        self, blob: Blob, folder: Path, file_pool: FilePool | None, started: Started
    ) -> Path:
        try:
            receiver = self._receiver(folder, blob, file_pool)
        except ProtocolError:
            blob_path(folder, blob.id).unlink(missing_ok=True)  # other bytes under this id
            receiver = self._receiver(folder, blob, file_pool)
        with receiver, rpc_errors(self._address):
            if not receiver.complete:
                self._receive(receiver, blob, started)
            return receiver.finish()

    def _receive(self, receiver: Receiver, blob: Blob, started: Started) -> None:
        offset = receiver.received_bytes
        chunk_bytes = self._chunk_bytes()
        any_size = self._line.is_steady and chunk_bytes == self._line.chunk_bytes
        request = DownloadRequest(
            blob_id=blob.id, offset=offset, chunk_bytes=0 if any_size else chunk_bytes
        )
        call = self._call_download(request)
        started(cast("grpc.Future[Any]", call))
        try:
            for chunk in call:
                receiver.write(chunk)
                self._line.received_bytes += len(chunk.data)
                self._line.carried(len(chunk.data))
                self._bucket.take(len(chunk.data))
        except grpc.RpcError:
            self._line.lost()
            raise
        finally:
            cast("grpc.Future[Any]", call).cancel()

    def _chunk_bytes(self) -> int:
        return min(self._line.chunk_bytes, self._bucket.chunk_bytes)

    def _receiver(self, folder: Path, blob: Blob, file_pool: FilePool | None) -> Receiver:
        size_max = self._blob_bytes_max
        return Receiver(folder, blob, size_max=size_max, fsync=False, file_pool=file_pool)

    def _upload(self, instruction_id: str, blob: Blob, path: Path, started: Started) -> None:
        size = path.stat().st_size if path.is_file() else -1
        if size != blob.size_bytes:
            raise StoreError(f"{path}: {size} bytes, {blob.size_bytes} were recorded")
        offset, asks, setbacks = 0, self._line.begin(blob.id), 0
        while setbacks < UPLOAD_SETBACKS_MAX:
            opening = UploadOpen(instruction_id=instruction_id, blob=blob, offset=offset)
            portion = 0 if asks else None if self._line.is_steady else PORTION_CHUNKS
            pieces = islice(chunks(path, offset, self._chunk_bytes()), portion)
            there = min(size, self._send(opening, pieces, started))
            self._line.arrived(blob.id, there)
            if there == size:
                self._line.done(blob.id)
                return
            setbacks += there <= offset and not asks
            offset, asks = there, False
        raise ProtocolError(f"the server takes no more of blob {blob.id} than {offset} bytes")

    def _send(self, opening: UploadOpen, pieces: Iterable[Piece], started: Started) -> int:
        """Send pieces, and return how many bytes of the blob the server then has."""
        blob = opening.blob
        try:
            with rpc_errors(self._address):
                call = self._call_upload.future(_messages(opening, pieces, self._bucket))
                started(call)
                state = call.result()
                return blob.size_bytes if state.complete else int(state.received_bytes)
        except UnreachableError:
            self._line.lost()
            raise
        except MeadowError as error:
            found = re.fullmatch(r"offset=(\d{1,19})", str(error))
            if found is None:
                self._line.done(blob.id)
                raise
            return int(found[1])


def _messages(opening: UploadOpen, pieces: Iterable[Piece], bucket: TokenBucket) -> Iterator[bytes]:
    yield pack_upload_open(opening)
    for piece in pieces:
        bucket.take(len(piece.data))
        yield pack_upload_chunk(piece)


async def _in_thread(function: Callable[[Started], T]) -> T:
    """Run a blocking call in a thread; cancelling the task cancels the call."""
    calls: list[grpc.Future[Any]] = []
    cancelled = False

    def started(call: grpc.Future[Any]) -> None:
        calls.append(call)
        if cancelled:
            call.cancel()

    future = asyncio.get_running_loop().run_in_executor(None, function, started)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        cancelled = True
        for call in calls:
            call.cancel()
        await asyncio.gather(future, return_exceptions=True)
        raise
