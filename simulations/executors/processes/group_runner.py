"""The worker's side of a group: runs its clients and writes what comes of it.

It runs in a worker process, or in a Ray actor, with one app loaded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Error, Message, RecordDict

from ....apps.folder import App
from ....errors import AppError, MeadowError, StoreError
from ....flower.messages import arrays_to_params, identify_process, rebuild_message
from ....run.app_output import taken_output
from ....strategies.algorithms.combined import clients_of
from ....strategies.rounds.broadcast import Broadcast
from ....transport.blobs import blob_path
from ....transport.codec import decode, encode
from ....transport.content import pack_content, unpack_content
from ....transport.fleet_pb2 import Envelope
from ....transport.writer import BlobWriter
from ...population.clients import SimulatedClients
from ...population.state_store import MemoryStates
from ..apps import client_app_of, vectorized_executor
from ..contract import APP_RAISED, EventSink, Executor
from ..sequential import SequentialExecutor
from .group_files import (
    BROADCAST,
    MESSAGES,
    REPLIES,
    STATES,
    SUMS,
    GroupJob,
    Report,
    WorkerSettings,
    read_frames,
    write_frames,
)
from .partial import GroupSum, clipping_by_server, partial_content

__all__ = ["GroupRunner", "make_inner"]


def make_inner(name: str, app: App, clients: SimulatedClients, *, sink: EventSink) -> Executor:
    """Return the executor that runs a group inside of a worker.

    Raises:
        AppError: the app's client code does not load.
        ConfigError: the app cannot run on that executor.
    """
    if name == "vectorized":
        return vectorized_executor(app, clients, in_group=True, sink=sink)
    if name != "sequential":
        raise AppError(
            f"executor {name!r} cannot run inside of a worker; use 'sequential' or 'vectorized'"
        )
    return SequentialExecutor(client_app_of(app), clients, sink=sink)


class GroupRunner:
    """An app with an executor, and clients that keep something only while their group runs."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Load the app.

        Raises:
            AppError, ConfigError: it does not load, or is not the one that the run began with.
        """
        app = App.load(settings.folder, overrides=settings.overrides, environ={})
        identify_process(run_id=settings.run_id, node_id=0, quiet=app.flower is None)
        if app.sha256 != settings.sha256:
            raise AppError(f"the app {app.folder} was changed during the run; undo the change")
        self._states = MemoryStates()
        clients = SimulatedClients(
            settings.clients,
            run_id=settings.run_id,
            run_config=settings.run_config,
            node_config=settings.node_config,
            states=self._states,
        )
        self._tracebacks: list[tuple[int, str]] = []
        self._events: list[tuple[str, Mapping[str, Any]]] = []
        sink = EventSink(
            traceback=lambda node_id, text: self._tracebacks.append((node_id, text)),
            explain=app.explain,
            took=lambda node_id, took_s: self._seconds.update({node_id: took_s}),
            event=lambda kind, detail: self._events.append((kind, detail)),
        )
        self._inner = make_inner(settings.inner, app, clients, sink=sink)
        self._clients = clients
        self._broadcast: tuple[bytes, Path, RecordDict] | None = None
        self._seconds: dict[int, float] = {}

    def run(self, shared: Path, inbox: Path, outbox: Path) -> None:
        """Run the group that is in `inbox`; its result is in `outbox` then.

        Raises:
            StoreError, ProtocolError: the folders cannot be read or written.
        """
        self._states.begin(dict(read_frames(inbox / STATES)))
        self._tracebacks.clear()
        self._events.clear()
        self._seconds = {}
        job = GroupJob.read(inbox)
        blobs = BlobWriter(outbox, fsync=False)
        report: dict[str, Any] = {}
        with taken_output() as output:
            if job.combine:
                report = self._run_combined(job, self._broadcast_of(job, shared), outbox, blobs)
            else:
                replies = self._timed(self._messages_of(job, shared, inbox))
                packed = (_pack(reply, blobs) for reply in replies)
                write_frames(outbox / REPLIES, enumerate(packed))
        write_frames(outbox / STATES, self._states.changed.items())
        Report(
            seconds=list(self._seconds.items()),
            tracebacks=self._tracebacks,
            events=self._events,
            output=output,
            **report,
        ).write(outbox)

    def close(self) -> None:
        """Give everything back."""
        self._inner.close()
        self._clients.close()

    def _run_combined(
        self, job: GroupJob, broadcast: Broadcast, outbox: Path, blobs: BlobWriter
    ) -> dict[str, Any]:
        """Sum the updates and write the sums; return their entries of the report."""
        (arrays,) = broadcast.content.array_records.values()
        clipping = clipping_by_server(broadcast.content)
        group = GroupSum(arrays_to_params(arrays), clipping)
        combined = self._inner.combines
        refused = (group.take(reply, combined=combined) for reply in self._timed(broadcast))
        packed = (_pack(reply, blobs) for reply in refused if reply is not None)
        write_frames(outbox / REPLIES, enumerate(packed))
        partial = group.finish()
        if partial is None:
            return {}
        write_frames(outbox / SUMS, [(0, pack_content(partial_content(partial), blobs))])
        return {
            "weights": partial.weights,
            "table_clients": partial.table.clients,
            "table_examples": partial.table.examples,
            "table_metrics": partial.table.metrics,
        }

    def _timed(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Run the clients, and note how long each took, where the executor does not."""
        begun_s = time.monotonic()
        for reply in self._inner.execute(messages):
            clients = clients_of(reply)
            took_s = (time.monotonic() - begun_s) / len(clients)
            for client in clients:
                self._seconds.setdefault(client, took_s)
            yield reply
            begun_s = time.monotonic()

    def _messages_of(self, job: GroupJob, shared: Path, inbox: Path) -> Sequence[Message]:
        if job.message_type:
            return self._broadcast_of(job, shared)
        return [
            decode(Envelope.FromString(data), lambda blob: blob_path(inbox, blob.id))
            for _, data in read_frames(inbox / MESSAGES)
        ]

    def _broadcast_of(self, job: GroupJob, shared: Path) -> Broadcast:
        """Return the group's part of the broadcast; a round's content is read once."""
        ((_, packed),) = read_frames(shared / BROADCAST)
        if self._broadcast is None or self._broadcast[:2] != (packed, shared):
            self._broadcast = (packed, shared, unpack_content(packed, shared))
        return Broadcast(
            self._broadcast[2],
            job.message_type,
            list(job.clients),
            group_id=job.group_id,
            id_prefix=job.id_prefix,
        )


def _pack(reply: Message, blobs: BlobWriter) -> bytes:
    """Return a reply's envelope; one that cannot be sent becomes an error reply."""
    try:
        return encode(reply, blobs).SerializeToString()
    except StoreError:
        raise
    except MeadowError as error:
        refusal = rebuild_message(reply.metadata, Error(APP_RAISED, str(error)))
        return encode(refusal, blobs).SerializeToString()
