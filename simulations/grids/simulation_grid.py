"""`SimulationGrid`: Flower's Grid over clients that live on this machine."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Message

from ...flower.messages import content_bytes, set_message_id
from ...flower.run_grid import RunGrid
from ...strategies.algorithms.combined import clients_of
from ...strategies.rounds.broadcast import Broadcast
from ..executors.contract import Executor
from ..population.clients import SimulatedClients
from ..population.tags import Tagged
from .prefetch import Prefetch

__all__ = ["SimulationGrid"]


@dataclass(slots=True)
class _Traffic:
    sent: int = 0
    received: int = 0


class SimulationGrid(RunGrid):
    """Executes messages on simulated clients; node ids are 1 to the number of clients.

    Every client keeps its `Context.state` between messages. An exception in a client app becomes
    an error reply, as it would from a real client.
    """

    def __init__(
        self, executor: Executor, clients: SimulatedClients, *, tagged: Tagged | None = None
    ) -> None:
        super().__init__(clients.run_id)
        self._tagged = tagged
        self._executor = executor
        self._prefetch = Prefetch(executor)
        self._clients = clients
        self._waiting: OrderedDict[str, Message] = OrderedDict()
        self._unpulled: dict[str, Message] = {}
        self._messages = 0
        self._stopping = False
        self._traffic = _Traffic()

    # ------------------------------------------------------------------ Flower's interface

    def get_node_ids(self) -> Sequence[int]:
        """Return all simulated clients, or those with the tags that are asked for."""
        everybody = range(1, self._clients.count + 1)
        if self._tagged is None:
            return everybody
        ids = np.asarray(everybody)
        return [int(id_) for id_ in ids[self._tagged.has(ids)]]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take messages; they are executed when their replies are pulled."""
        ids = []
        for message in messages:
            self._number(message)
            self._waiting[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Execute these messages, where that is not done yet, and return their replies."""
        ids = list(message_ids)
        done = [self._unpulled.pop(id_) for id_ in ids if id_ in self._unpulled]
        waiting = [self._waiting.pop(id_, None) for id_ in ids]
        executed = self._execute_pushed([message for message in waiting if message is not None])
        return done + executed

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Execute messages; the replies come as they are asked for."""
        if isinstance(messages, Broadcast):
            self._messages += 1
            order = messages.numbered(f"{self._run.run_id}-{self._messages}-")
            return self._answer(order, timeout)
        messages = list(messages)
        for message in messages:
            self._number(message)
        return self._answer(messages, timeout)

    # ------------------------------------------------------------------ beyond Flower's

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that all clients of the grid have, of those that were asked for."""
        return () if self._tagged is None else tuple(self._tagged.shares)

    @property
    def combines_updates(self) -> bool:
        """Whether a reply may stand for many clients."""
        return self._executor.combines

    def execute_pushed(self) -> None:
        """Execute all messages that wait, a client's own in the order in which they were pushed;
        what is answered is kept until it is pulled."""
        waiting, self._waiting = list(self._waiting.values()), OrderedDict()
        for wave in _waves(waiting):
            for reply in self._execute(wave):
                self._unpulled[reply.metadata.reply_to_message_id] = reply

    def wait_for_nodes(self, count: int) -> None:
        """Return at once: there will never be more clients."""

    def stop(self) -> None:
        """End the run after the round that is under way."""
        self._stopping = True

    def is_stopping(self) -> bool:
        """Whether the run is to end."""
        return self._stopping

    def forget(self, group_id: str) -> None:
        """Drop a group's messages: their replies are no longer needed, and they are not executed."""
        self._drop([id_ for id_, m in self._waiting.items() if m.metadata.group_id == group_id])

    @property
    def bytes_sent(self) -> int:
        """Bytes of tensors that clients were given so far."""
        return self._traffic.sent

    @property
    def bytes_received(self) -> int:
        """Bytes of tensors that clients gave back so far."""
        return self._traffic.received

    # ------------------------------------------------------------------ parts of it

    def _drop(self, ids: Sequence[str]) -> None:
        for id_ in ids:
            del self._waiting[id_]
        self._prefetch.forget(ids)

    def _number(self, message: Message) -> None:
        self._messages += 1
        set_message_id(message, f"{self._run.run_id}-{self._messages}")

    def _answer(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        """Yield the replies to a batch; everybody answers, so there is nothing to time out."""
        return self._execute(messages)

    def _execute_pushed(self, messages: Sequence[Message]) -> list[Message]:
        """Execute pushed messages that are asked for now; others of them may be run with them."""
        self._count_sent(messages)
        replies = self._prefetch.execute(messages, self._that_answer())
        return list(self._counted(replies))

    def _that_answer(self) -> Iterable[Message]:
        """Return the waiting messages whose clients will answer."""
        return self._waiting.values()

    def _execute(self, messages: Sequence[Message]) -> Iterator[Message]:
        self._count_sent(messages)
        yield from self._execute_uncounted(messages)

    def _execute_uncounted(self, messages: Sequence[Message]) -> Iterator[Message]:
        return self._counted(self._executor.execute(messages))

    def _counted(self, replies: Iterable[Message]) -> Iterator[Message]:
        for reply in replies:
            set_message_id(reply, f"{reply.metadata.reply_to_message_id}-r")
            self._traffic.received += content_bytes(reply) * len(clients_of(reply))
            yield reply

    def _count_sent(self, messages: Sequence[Message]) -> None:
        if isinstance(messages, Broadcast):
            if messages.clients:
                self._traffic.sent += len(messages) * content_bytes(messages[0])
        else:
            self._traffic.sent += sum(map(content_bytes, messages))


def _waves(messages: Iterable[Message]) -> list[list[Message]]:
    """Return the messages in parts that have at most one for a client, the earlier ones first."""
    waves: list[list[Message]] = []
    sent: Counter[int] = Counter()
    for message in messages:
        client = message.metadata.dst_node_id
        if sent[client] == len(waves):
            waves.append([])
        waves[sent[client]].append(message)
        sent[client] += 1
    return waves
