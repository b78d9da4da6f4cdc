"""Delivers replies to the server, each until the server has confirmed it."""

from __future__ import annotations

import asyncio
import zlib
from hashlib import sha256
from pathlib import Path

from ...errors import IdentityError, MeadowError, UnreachableError
from ...privacy.secagg.terms.terms import is_talk
from ...transport.blobs import blob_path, blobs_of
from ...transport.durable import write_file
from ...transport.fleet_pb2 import AgentMessage, AppError, Blob, Envelope, Reply
from .connection import Connection
from .events import Event, Report, size_text
from .rpc_errors import GoneError
from .state import AgentState
from .training import REPLY_UNAVAILABLE
from .uplink import Uplink

__all__ = ["Deliveries"]

DELIVERIES_MAX = 64
REPLY_BYTES_MAX = 128 << 10
"""A larger reply is sent as a file, whose transfer resumes after a lost connection."""


class Deliveries:
    """Uploads a reply's files and sends the reply, and repeats both until it is confirmed."""

    def __init__(self, uplink: Uplink, state: AgentState, report: Report) -> None:
        self._uplink = uplink
        self._state = state
        self._report = report
        self._room = asyncio.Semaphore(DELIVERIES_MAX)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._confirmed: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, instruction_id: str) -> bool:
        return instruction_id in self._tasks

    def ids(self) -> list[str]:
        """Return the ids of the instructions whose replies are being delivered."""
        return list(self._tasks)

    async def begin(self, reply: Reply, *, run_id: int, label: str) -> None:
        """Deliver a reply in the background; waits only while too many are being delivered."""
        await self._room.acquire()
        instruction_id = reply.instruction_id
        self._confirmed[instruction_id] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._deliver(reply, run_id, label))
        self._tasks[instruction_id] = task
        task.add_done_callback(lambda _: self._end(instruction_id))

    def confirm(self, instruction_id: str) -> None:
        """Note that the server has a reply."""
        confirmed = self._confirmed.get(instruction_id)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(None)

    def withdraw(self, instruction_id: str) -> None:
        """Stop the delivery of a reply that the server no longer wants."""
        self.confirm(instruction_id)
        if instruction_id in self._tasks:
            self._tasks[instruction_id].cancel()

    async def close(self) -> None:
        """Stop; unconfirmed replies are sent again after the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, instruction_id: str) -> None:
        del self._tasks[instruction_id], self._confirmed[instruction_id]
        self._room.release()

    async def _deliver(self, reply: Reply, run_id: int, label: str) -> None:
        confirmed = self._confirmed[reply.instruction_id]
        attempt = size = 0
        while not confirmed.done():
            connection = await self._uplink.online()
            try:
                size, sent = await self._upload(connection, reply, run_id)
                await connection.send(AgentMessage(reply=sent))
            except (UnreachableError, IdentityError):
                attempt = await self._uplink.pause(connection, attempt)
            except GoneError:  # answered already, or no longer wanted; the record stays
                break
            except (
                MeadowError
            ) as error:  # the server refuses it: report that to the server and the owner
                self._report(Event(kind="failed", text=f"{label}: {error}", detail={"run": run_id}))
                reply = _without_result(reply, error)
            else:
                await asyncio.wait((confirmed, connection.lost), return_when="FIRST_COMPLETED")
        self._state.acknowledge(reply.instruction_id)
        failed = bool(reply.refused) or reply.envelope.HasField("error")
        updates = any(record.HasField("arrays") for record in reply.envelope.records)
        reported = updates or not is_talk(reply.envelope.metadata.message_type)
        if confirmed.done() and reported and not failed:
            what = "update" if updates else "answer"
            text = f"{label}: {what} sent {size_text(size)}"
            self._report(Event(kind="sent", text=text, detail={"run": run_id, "bytes": size}))

    async def _upload(self, connection: Connection, reply: Reply, run_id: int) -> tuple[int, Reply]:
        """Send the reply's files; return the bytes of files and reply, and the message to send: the
        reply, or a reference to its file if it is too large for a message."""
        folder = self._state.reply_dir(run_id, reply.instruction_id)
        size = reply.ByteSize()
        blobs = blobs_of(reply.envelope)
        if size > REPLY_BYTES_MAX:
            file = await asyncio.to_thread(_in_file, reply.envelope, folder)
            blobs, reply = [*blobs, file], Reply(instruction_id=reply.instruction_id, file=file)
            size -= file.size_bytes
        for blob in blobs:
            await connection.upload(reply.instruction_id, blob, blob_path(folder, blob.id))
            size += blob.size_bytes
        return size, reply


def _in_file(envelope: Envelope, folder: Path) -> Blob:
    """Write an envelope next to the files of its tensors, under a fixed name."""
    data = envelope.SerializeToString(deterministic=True)
    blob_id = f"reply-{sha256(data).hexdigest()[:32]}"
    folder.mkdir(parents=True, exist_ok=True)
    write_file(blob_path(folder, blob_id), data, fsync=False)
    return Blob(id=blob_id, size_bytes=len(data), crc32=zlib.crc32(data))


def _without_result(reply: Reply, error: MeadowError) -> Reply:
    answer = Reply(instruction_id=reply.instruction_id)
    answer.envelope.metadata.CopyFrom(reply.envelope.metadata)
    answer.envelope.error.CopyFrom(
        AppError(code=REPLY_UNAVAILABLE, reason=f"the reply could not be delivered: {error}")
    )
    return answer
