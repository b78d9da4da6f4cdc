"""Delivers replies to the server, each until the server has confirmed it."""

from __future__ import annotations

import asyncio
import zlib
from hashlib import sha256
from pathlib import Path

from ...errors import IdentityError, MeadowError, StoreError, UnreachableError
from ...privacy.secagg.terms.terms import is_talk
from ...transport.blobs import blob_path, blobs_of
from ...transport.durable import write_file
from ...transport.fleet_pb2 import AgentMessage, AppError, Blob, Envelope, Reply
from ...transport.spans import Span, phase, present_span
from ..owner.sent_log import Outgoing, SentLog
from .events import Event, Report, size_text
from .rpc_errors import GoneError
from .state import AgentState
from .training import REPLY_UNAVAILABLE
from .uplink import Uplink

__all__ = ["Deliveries"]

DELIVERIES_MAX = 64
LOG_RETRY_S = 5.0
NOT_WRITTEN = "nothing leaves until the log of what has left can be written"
REPLY_BYTES_MAX = 128 << 10
"""A larger reply is sent as a file, whose transfer resumes after a lost connection."""


class Deliveries:
    """Uploads a reply's files and sends the reply, and repeats both until it is confirmed."""

    def __init__(self, uplink: Uplink, state: AgentState, log: SentLog, report: Report) -> None:
        self._uplink = uplink
        self._state = state
        self._log = log
        self._report = report
        self._room = asyncio.Semaphore(DELIVERIES_MAX)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._confirmed: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, instruction_id: str) -> bool:
        return instruction_id in self._tasks

    def ids(self) -> list[str]:
        """Return the ids of the instructions whose replies are being delivered."""
        return list(self._tasks)

    async def begin(self, answer: Outgoing, *, label: str) -> None:
        """Deliver a reply in the background; waits only while too many are being delivered."""
        await self._room.acquire()
        instruction_id = answer.reply.instruction_id
        self._confirmed[instruction_id] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._deliver(answer, label))
        self._tasks[instruction_id] = task
        span = present_span()
        task.add_done_callback(lambda _: self._end(instruction_id, span))

    async def try_to_send(self, answer: Outgoing) -> None:
        """Send a reply once, without files, in which case nobody waits for its confirmation: without a
        connection, or while the owner's log cannot be written, drop it."""
        try:
            await asyncio.to_thread(self._log.write, answer, size_bytes=answer.reply.ByteSize())
        except StoreError as error:
            self._report(Event(kind="warning", text=f"{NOT_WRITTEN}: {error}"))
        else:
            await self._uplink.try_to_send(AgentMessage(reply=answer.reply))

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

    def _end(self, instruction_id: str, span: Span) -> None:
        span.end()
        del self._tasks[instruction_id], self._confirmed[instruction_id]
        self._room.release()

    async def _deliver(self, answer: Outgoing, label: str) -> None:
        reply, run_id = answer.reply, answer.about.run_id
        confirmed = self._confirmed[reply.instruction_id]
        attempt = size = 0
        logged: Reply | None = None
        while not confirmed.done():
            connection = await self._uplink.online()
            try:
                sent, blobs = await self._packed(reply, run_id)
                size = sent.ByteSize() + sum(blob.size_bytes for blob in blobs)
                if logged is not reply:
                    await self._write_down(Outgoing(reply, answer.about), size)
                    logged = reply
                folder = self._state.reply_dir(run_id, reply.instruction_id)
                with phase("meadow.client.upload"):
                    for blob in blobs:
                        path = blob_path(folder, blob.id)
                        await connection.upload(reply.instruction_id, blob, path)
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

    async def _write_down(self, answer: Outgoing, size_bytes: int) -> None:
        """Write into the owner's log what is about to leave; nothing leaves before it is there."""
        while True:
            try:
                await asyncio.to_thread(self._log.write, answer, size_bytes=size_bytes)
                return
            except StoreError as error:
                self._report(Event(kind="warning", text=f"{NOT_WRITTEN}: {error}"))
                await asyncio.sleep(LOG_RETRY_S)

    async def _packed(self, reply: Reply, run_id: int) -> tuple[Reply, list[Blob]]:
        """Return the message to send and its files: the reply, or a reference to its own file if it is
        too large for a message."""
        blobs = blobs_of(reply.envelope)
        if reply.ByteSize() <= REPLY_BYTES_MAX:
            return reply, blobs
        folder = self._state.reply_dir(run_id, reply.instruction_id)
        file = await asyncio.to_thread(_in_file, reply.envelope, folder)
        return Reply(instruction_id=reply.instruction_id, file=file), [*blobs, file]


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
