"""The clients below a relay, as the grid of one instruction sees them."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Coroutine
from hashlib import sha256
from typing import Any

from ..errors import RunStoppedError
from ..server.daemon.agent_registry import AgentRegistry
from ..server.daemon.dispatch import Dispatcher
from ..transport import fleet_pb2 as pb

__all__ = ["Below"]

KEY_CHARS = 16


class Below:
    """What `FleetGrid` asks of a run worker's channel, on a dispatcher in this process.

    The grid works in a thread of its own. A step's key has a part that its instruction from above
    decides: a relay that was killed gets the replies that it had, and no other instruction's.
    """

    stopping = False

    def __init__(
        self,
        above: pb.Instruction,
        dispatcher: Dispatcher,
        agents: AgentRegistry,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._above = above
        self._dispatcher = dispatcher
        self._agents = agents
        self._loop = loop
        self._suffix = sha256(above.id.encode()).hexdigest()[:KEY_CHARS]
        self._items: queue.SimpleQueue[pb.StepReply | pb.StepEnd | None] = queue.SimpleQueue()

    # ------------------------------------------------------------------ of the grid's thread

    @property
    def nodes(self) -> list[int]:
        """The clients that are there."""
        return self._agents.available()

    @property
    def has_relays(self) -> bool:
        """Whether a client is behind another relay."""
        return bool(self._agents.relays())

    def relay_of(self, client: int) -> int:
        """Return the relay that a client is behind, 0 for none."""
        return self._agents.relay_of(client)

    def name_of(self, client: int) -> str | None:
        """Return a client's name."""
        return self._agents.names_of([client])[0] or None

    def wait_for_nodes(self, count: int) -> list[int]:
        """Return the clients that are there."""
        return self.nodes

    def send(self, message: pb.WorkerMessage) -> None:
        """Open a step below; `forget` is the relay's own."""
        if message.HasField("step"):
            message.step.key = self._key_below(message.step.key)
            step = message.step
            self._call(self._dispatcher.open_step(self._above.run_id, step, above=self._above))

    def next_of(self, key: str) -> pb.StepReply | pb.StepEnd:
        """Wait for the step's next reply, or its end.

        Raises:
            RunStoppedError: the instruction from above was cancelled.
        """
        item = self._items.get()
        if item is None:
            raise RunStoppedError("the server above no longer wants an answer")
        return item

    def close_step(self, key: str) -> None:
        """Do nothing: the relay forgets a step once its answer is durable."""

    def ready_of(self, key: str) -> pb.StepReply | pb.StepEnd | None:
        """Not used: a relay pushes no messages."""
        raise NotImplementedError

    def wait_for_any(self, keys: object) -> None:
        """Not used: a relay pushes no messages."""
        raise NotImplementedError

    # ------------------------------------------------------------------ of the event loop

    async def take(self, message: pb.DaemonMessage) -> None:
        """Take what the dispatcher has for the step."""
        if message.HasField("reply") and message.reply.key.endswith(self._suffix):
            self._items.put(message.reply)
        elif message.HasField("end") and message.end.key.endswith(self._suffix):
            self._items.put(message.end)

    def cancel(self) -> None:
        """End a pending `next_of`."""
        self._items.put(None)

    def _key_below(self, key: str) -> str:
        return f"{key}/{self._suffix}"

    def _call(self, work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()
