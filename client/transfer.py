"""Blobs to and from the server, in steps that fill the line.

A transfer is a blocking loop in a thread of its own: one hop between threads a file, not one a
chunk. It never holds more than a few chunks, and it goes on where an earlier attempt stopped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc

from ..errors import ProtocolError, StoreError
from ..transport.blobs import CHUNK_BYTES, Receiver, blob_path, chunks
from ..transport.chunk_wire import pack_upload_chunk, pack_upload_open, unpack_chunk
from ..transport.fleet_pb2 import Blob, DownloadRequest, UploadOpen, UploadState
from ..transport.spares import Spares
from .rpc_errors import rpc_errors

__all__ = ["Bulk"]

UPLOAD_OPENINGS_MAX = 4
CHUNK_BYTES_MIN = 16 << 10
T = TypeVar("T")
Started = Callable[["grpc.Future[Any]"], None]


class Bulk:
    """The calls that carry tensors, on a connection to one server."""

    def __init__(self, channel: grpc.Channel, address: str, *, blob_bytes_max: int) -> None:
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
        self.chunk_bytes = CHUNK_BYTES
        """How large the chunks of uploads are; the server may wish for smaller ones."""
        self._address = address
        self._blob_bytes_max = blob_bytes_max

    def wish_for_chunks(self, size_bytes: int) -> None:
        """Send chunks of this size from now on, if it is a possible one; 0 is no wish."""
        if size_bytes:
            self.chunk_bytes = max(CHUNK_BYTES_MIN, min(CHUNK_BYTES, size_bytes))

    async def download(self, blob: Blob, folder: Path, spares: Spares | None = None) -> Path:
        """Fetch a blob into `folder`, over one of `spares` if there is one.

        A part that is there already is not fetched again.

        Raises:
            UnreachableError: the connection was lost; the part stays.
            GoneError: the server no longer offers the blob.
            MeadowError: the blob is not what was announced, or cannot be stored.
        """
        return await _in_thread(lambda started: self._download(blob, folder, spares, started))

    async def upload(self, instruction_id: str, blob: Blob, path: Path) -> None:
        """Send a file; what the server has of it already is not sent again.

        Raises:
            UnreachableError: the connection was lost.
            MeadowError: the server refuses the blob, or the file is not there.
        """
        await _in_thread(lambda started: self._upload(instruction_id, blob, path, started))

    def _download(self, blob: Blob, folder: Path, spares: Spares | None, started: Started) -> Path:
        try:
            receiver = self._receiver(folder, blob, spares)
        except ProtocolError:
            blob_path(folder, blob.id).unlink(missing_ok=True)  # other bytes under this id
            receiver = self._receiver(folder, blob, spares)
        with receiver, rpc_errors(self._address):
            if not receiver.complete:
                request = DownloadRequest(blob_id=blob.id, offset=receiver.received_bytes)
                call = self._call_download(request)
                started(cast("grpc.Future[Any]", call))
                try:
                    for chunk in call:
                        receiver.write(chunk)
                finally:
                    cast("grpc.Future[Any]", call).cancel()
            return receiver.finish()

    def _receiver(self, folder: Path, blob: Blob, spares: Spares | None) -> Receiver:
        size_max = self._blob_bytes_max
        return Receiver(folder, blob, size_max=size_max, fsync=False, spares=spares)

    def _upload(self, instruction_id: str, blob: Blob, path: Path, started: Started) -> None:
        size = path.stat().st_size if path.is_file() else -1
        if size != blob.size_bytes:
            raise StoreError(f"{path}: {size} bytes, {blob.size_bytes} were recorded")
        offset = 0
        for _ in range(UPLOAD_OPENINGS_MAX):
            opening = UploadOpen(instruction_id=instruction_id, blob=blob, offset=offset)
            try:
                with rpc_errors(self._address):
                    call = self._call_upload.future(_messages(opening, path, self.chunk_bytes))
                    started(call)
                    if call.result().complete:
                        return
                raise ProtocolError(f"the server took only a part of blob {blob.id}")
            except ProtocolError as error:
                found = re.fullmatch(r"offset=(\d{1,19})", str(error))
                if found is None:
                    raise
                offset = min(int(found[1]), size)
        raise ProtocolError(f"the server does not say how much of blob {blob.id} it has")


def _messages(opening: UploadOpen, path: Path, chunk_bytes: int) -> Iterator[bytes]:
    yield pack_upload_open(opening)
    yield from map(pack_upload_chunk, chunks(path, opening.offset, chunk_bytes))


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
