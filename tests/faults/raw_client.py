"""A client made of bare stubs: it can say what no agent would."""

from __future__ import annotations

import queue
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from meadow.transport import fleet_pb2 as pb
from meadow.transport.blobs import new_blob_id
from meadow.transport.entries import pack_entries
from meadow.transport.fleet_pb2_grpc import FleetStub
from meadow.transport.protocol import PROTOCOL_VERSION
from meadow.transport.tensors import write_tensors

from .live_server import CALL_S, LiveServer, name_of

CHUNK_BYTES = 256 << 10


class Stream:
    """One `Connect` call; a thread sorts what arrives."""

    def __init__(self, stub: FleetStub, *first: pb.AgentMessage, reads: bool = True) -> None:
        self._out: queue.SimpleQueue[pb.AgentMessage | None] = queue.SimpleQueue()
        for message in first:
            self.send(message)
        self.call = stub.Connect(iter(self._out.get, None))
        self._inbox: queue.SimpleQueue[pb.ServerMessage | grpc.RpcError] = queue.SimpleQueue()
        self._instructions: deque[pb.Instruction] = deque()
        """Those that came while something else was awaited: the next round's may overtake the
        acknowledgement of the last reply."""
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for message in self.call:
                self._inbox.put(message)
        except grpc.RpcError as error:
            self._inbox.put(error)

    def send(self, message: pb.AgentMessage) -> None:
        """Say something."""
        self._out.put(message)

    def next(self, *kinds: str) -> Any:
        """Return the next message of one of these kinds; raises the stream's end.

        Those of other kinds are dropped, but for instructions.
        """
        while True:
            if "instruction" in kinds and self._instructions:
                return self._instructions.popleft()
            item = self._inbox.get(timeout=CALL_S)
            if isinstance(item, grpc.RpcError):
                self._inbox.put(item)
                raise item
            kind = item.WhichOneof("kind")
            if kind in kinds:
                return getattr(item, kind)
            if kind == "instruction":
                self._instructions.append(item.instruction)

    def ended(self) -> grpc.RpcError:
        """Wait until the server ends the stream and return how."""
        try:
            self.next("nothing")
        except grpc.RpcError as error:
            return error
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Hang up."""
        self._out.put(None)
        self.call.cancel()


class RawClient:
    """An enrolled client whose every word a test chooses."""

    def __init__(self, server: LiveServer, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.pair = server.enroll(name, folder)
        assert name_of(self.pair) == name
        self.channel = server.channel(self.pair)
        self.stub = FleetStub(self.channel)
        self.stream: Stream | None = None
        self.node_id = 0

    def connect(self, *, reads: bool = True) -> Stream:
        """Open a stream and introduce ourselves."""
        hello = pb.AgentMessage(
            hello=pb.Hello(protocol=PROTOCOL_VERSION, client=self.name, version="1")
        )
        self.stream = Stream(self.stub, hello, reads=reads)
        if reads:
            self.node_id = self.stream.next("welcome").node_id
        return self.stream

    def close(self) -> None:
        """Go away."""
        if self.stream is not None:
            self.stream.close()
        self.channel.close()

    # ------------------------------------------------------------------ blobs

    def download(self, blob: pb.Blob) -> bytes:
        """Fetch a whole blob."""
        request = pb.DownloadRequest(blob_id=blob.id)
        return b"".join(chunk.data for chunk in self.stub.Download(request, timeout=CALL_S))

    def upload(self, instruction_id: str, data: bytes, *, blob: pb.Blob | None = None) -> pb.Blob:
        """Send bytes as a blob, whatever they are."""
        blob = blob or blob_of(data)
        messages = upload_messages(instruction_id, blob, data)
        assert self.stub.Upload(messages, timeout=CALL_S).complete
        return blob

    # ------------------------------------------------------------------ replies

    def tensors(self, **tensors: np.ndarray) -> bytes:
        """Return a file of tensors."""
        path = self.folder / f"{self.name}-{new_blob_id()}.safetensors"
        write_tensors(path, tensors, fsync=False)
        data = path.read_bytes()
        path.unlink()
        return data

    def reply(self, instruction_id: str, *records: pb.Record, **fields: Any) -> None:
        """Answer an instruction; returns when the server has acknowledged that."""
        assert self.stream is not None
        envelope = pb.Envelope(records=records, **fields)
        reply = pb.Reply(instruction_id=instruction_id, envelope=envelope)
        self.stream.send(pb.AgentMessage(reply=reply))
        while self.stream.next("ack").instruction_id != instruction_id:
            pass

    def update(
        self,
        instruction_id: str,
        metrics: Mapping[str, Any] | None = None,
        **tensors: np.ndarray,
    ) -> None:
        """Send an update as an honest client would, with any tensors and metrics."""
        blob = self.upload(instruction_id, self.tensors(**tensors))
        said = {"num-examples": 1} if metrics is None else metrics
        self.reply(instruction_id, arrays_of(blob, **tensors), metrics_of(said))


def blob_of(data: bytes, **changes: Any) -> pb.Blob:
    """Describe bytes as a blob, truly but for `changes`."""
    fields = {"id": new_blob_id(), "size_bytes": len(data), "crc32": zlib.crc32(data), **changes}
    return pb.Blob(**fields)


def upload_messages(instruction_id: str, blob: pb.Blob, data: bytes) -> Iterator[pb.UploadMessage]:
    """Return the messages that carry bytes as a blob."""
    yield pb.UploadMessage(open=pb.UploadOpen(instruction_id=instruction_id, blob=blob))
    for start in range(0, len(data), CHUNK_BYTES):
        part = data[start : start + CHUNK_BYTES]
        yield pb.UploadMessage(chunk=pb.Chunk(offset=start, data=part))


def arrays_of(
    blob: pb.Blob, infos: Iterable[pb.ArrayInfo] | None = None, **tensors: np.ndarray
) -> pb.Record:
    """Return the record that says which tensors a blob holds."""
    infos = infos or [
        pb.ArrayInfo(name=n, dtype=t.dtype.name, shape=t.shape, stype="numpy.ndarray")
        for n, t in tensors.items()
    ]
    return pb.Record(name="arrays", arrays=pb.Arrays(blob=blob, infos=infos))


def metrics_of(values: Mapping[str, Any]) -> pb.Record:
    """Return a record of metrics."""
    return pb.Record(name="metrics", metrics=pb.Entries(entries=pack_entries(dict(values))))
