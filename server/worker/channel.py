"""The run worker's end of its connection to the daemon."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable

from ...errors import MeadowError, RunStoppedError
from ...transport import fleet_pb2 as pb
from ...transport.pipe import Pipe

__all__ = ["Channel"]

DAEMON_GONE = 70


class Channel:
    """Sends the worker's messages, and sorts the daemon's messages in one reader thread.

    When the daemon dies, this process exits at once: the next daemon starts a new worker from the
    durable state.
    """

    def __init__(self, pipe: Pipe[pb.DaemonMessage, pb.WorkerMessage]) -> None:
        self._pipe = pipe
        self._changed = threading.Condition()
        self._nodes: list[int] = []
        self._nodes_are_new = False
        self._relays: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._stopping = False
        self._steps: dict[str, queue.SimpleQueue[pb.StepReply | pb.StepEnd]] = {}

    def start(self) -> pb.WorkerStart:
        """Return the first message, and begin to read in the background.

        Raises:
            MeadowError: the first message is of another kind, or the daemon is gone.
        """
        first = self._pipe.receive()
        if first is None or not first.HasField("start"):
            raise MeadowError("the daemon did not send the run of this worker")
        for cohort in first.start.cohorts:
            self._note_relays(cohort.node_ids, cohort.relays)
        threading.Thread(target=self._read, name="daemon", daemon=True).start()
        return first.start

    def _read(self) -> None:
        while (message := self._pipe.receive()) is not None:
            kind = message.WhichOneof("kind")
            with self._changed:
                if kind == "reply":
                    self._queue(message.reply.key).put(message.reply)
                elif kind == "end":
                    self._queue(message.end.key).put(message.end)
                else:
                    if kind == "nodes":
                        self._nodes = list(message.nodes.node_ids)
                        self._names.update(zip(self._nodes, message.nodes.names, strict=False))
                        self._note_relays(self._nodes, message.nodes.relays)
                        self._nodes_are_new = True
                    elif kind == "stop":
                        self._stopping = True
                        for waiting in self._steps.values():
                            waiting.put(pb.StepEnd())
                self._changed.notify_all()
        os._exit(DAEMON_GONE)

    def _note_relays(self, nodes: Iterable[int], relays: Iterable[int]) -> None:
        pairs = zip(nodes, relays, strict=False)
        self._relays.update((node, relay) for node, relay in pairs if relay)

    def _queue(self, key: str) -> queue.SimpleQueue[pb.StepReply | pb.StepEnd]:
        return self._steps.setdefault(key, queue.SimpleQueue())

    @property
    def stopping(self) -> bool:
        """Whether the run is to end."""
        return self._stopping

    @property
    def nodes(self) -> list[int]:
        """The clients that a cohort may be drawn from."""
        with self._changed:
            self._nodes_are_new = False
            return list(self._nodes)

    def relay_of(self, client: int) -> int:
        """Return the relay that a client was last behind, 0 for none."""
        return self._relays.get(client, 0)

    @property
    def has_relays(self) -> bool:
        """Whether a client is, or was, behind a relay."""
        return bool(self._relays)

    def name_of(self, client: int) -> str | None:
        """Return a client's name, None if it was not available since this worker began."""
        return self._names.get(client) or None

    def wait_for_nodes(self, count: int) -> list[int]:
        """Wait until `count` clients are available and return all available clients.

        Raises:
            RunStoppedError: the run was stopped meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or len(self._nodes) >= count)
            if self._stopping:
                raise RunStoppedError("stopped by the administrator")
            return list(self._nodes)

    def send(self, message: pb.WorkerMessage) -> None:
        """Send a message to the daemon."""
        try:
            self._pipe.send(message)
        except ConnectionError:
            os._exit(DAEMON_GONE)

    def next_of(self, key: str) -> pb.StepReply | pb.StepEnd:
        """Wait for a step's next reply, or its end.

        Raises:
            RunStoppedError: the run was stopped meanwhile.
        """
        item = self._queue(key).get()
        if self._stopping:
            raise RunStoppedError("stopped by the administrator")
        return item

    def wait_for_any(self, keys: Iterable[str]) -> None:
        """Wait until one of these steps has a reply or an end, or the available clients change.

        Raises:
            RunStoppedError: the run was stopped meanwhile.
        """
        queues = [self._queue(key) for key in keys]
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._stopping
                    or self._nodes_are_new
                    or not all(waiting.empty() for waiting in queues)
                )
            )
            self._nodes_are_new = False
        if self._stopping:
            raise RunStoppedError("stopped by the administrator")

    def ready_of(self, key: str) -> pb.StepReply | pb.StepEnd | None:
        """Return a step's next reply or end, None if neither has arrived.

        Raises:
            RunStoppedError: the run was stopped meanwhile.
        """
        if self._stopping:
            raise RunStoppedError("stopped by the administrator")
        try:
            return self._queue(key).get_nowait()
        except queue.Empty:
            return None

    def close_step(self, key: str) -> None:
        """Drop the queue of a step that is over."""
        self._steps.pop(key, None)
