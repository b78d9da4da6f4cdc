"""`SimulationGrid`: Flower's Grid over clients that live in this process.

The sequential executor: one client after another, in the order of the messages. It is the
reference for every other way of executing clients.
"""

from __future__ import annotations

import copy
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from ..flower import record_of, set_message_id, tensors_of
from ..run_grid import RunGrid
from ..transport.content import pack_content, unpack_content
from ..transport.writer import BlobWriter

__all__ = ["SimulationGrid"]

APP_RAISED = 2
"""Flower's error code for an exception in a client app."""


@dataclass(slots=True)
class _Traffic:
    sent: int = 0
    received: int = 0


class SimulationGrid(RunGrid):
    """Executes messages on simulated clients; node ids are 1 to `clients`.

    Every client keeps its `Context.state` between messages. An exception in a client app becomes
    an error reply, as it would from a real client.
    """

    def __init__(
        self,
        client_app: ClientApp,
        *,
        clients: int,
        run_id: int,
        run_config: Mapping[str, bool | int | float | str],
        on_traceback: Callable[[int, str], None] = lambda node_id, text: None,
        explain: Callable[[Exception], str] = lambda error: f"{type(error).__name__}: {error}",
    ) -> None:
        """`on_traceback` hears what a client's exception was, `explain` makes one line of it."""
        self._client_app = client_app
        self._clients = clients
        super().__init__(run_id)
        self._run_config = dict(run_config)
        self._states: dict[int, RecordDict] = {}
        self._waiting: OrderedDict[str, Message] = OrderedDict()
        self._on_traceback = on_traceback
        self._explain = explain
        self._messages = 0
        self._stopping = False
        self._traffic = _Traffic()

    # ------------------------------------------------------------------ Flower's interface

    def get_node_ids(self) -> Iterable[int]:
        """Return all simulated clients."""
        return range(1, self._clients + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take messages; they are executed when their replies are pulled."""
        ids = []
        for message in messages:
            self._messages += 1
            set_message_id(message, f"{self._run.run_id}-{self._messages}")
            self._waiting[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Execute these messages and return their replies."""
        waiting = [self._waiting.pop(id_, None) for id_ in message_ids]
        return [self._execute(message) for message in waiting if message is not None]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Execute messages one by one, as their replies are asked for."""
        for id_ in list(self.push_messages(messages)):
            yield from self.pull_messages([id_])

    # ------------------------------------------------------------------ beyond Flower's

    def wait_for_nodes(self, count: int) -> list[int]:
        """Return the clients; there will never be more."""
        return list(self.get_node_ids())

    def stop(self) -> None:
        """End the run after the round that is under way."""
        self._stopping = True

    def is_stopping(self) -> bool:
        """Whether the run is to end."""
        return self._stopping

    @property
    def bytes_sent(self) -> int:
        """Bytes of tensors that clients were given so far."""
        return self._traffic.sent

    @property
    def bytes_received(self) -> int:
        """Bytes of tensors that clients gave back so far."""
        return self._traffic.received

    def save_states(self, folder: Path) -> dict[str, str]:
        """Write what clients keep to themselves: arrays into `folder`, the rest is returned."""
        kept = {node: state for node, state in self._states.items() if state}
        if kept:
            folder.mkdir(exist_ok=True)
        writer = BlobWriter(folder)
        return {str(node): pack_content(state, writer).hex() for node, state in kept.items()}

    def load_states(self, folder: Path, states: Mapping[str, str]) -> None:
        """Give clients back what `save_states` wrote, when a run goes on."""
        for node, packed in states.items():
            self._states[int(node)] = unpack_content(bytes.fromhex(packed), folder)

    # ------------------------------------------------------------------ one client

    def _execute(self, message: Message) -> Message:
        node_id = message.metadata.dst_node_id
        self._traffic.sent += _size(message)
        context = self._context(node_id)
        try:
            if not 1 <= node_id <= self._clients:
                raise ValueError(f"there is no client {node_id}; there are 1 to {self._clients}")
            message.content = _own(message.content)
            reply = self._client_app(message, context)
        except Exception as error:  # a client app may raise anything
            self._on_traceback(node_id, traceback.format_exc())
            reply = Message(Error(APP_RAISED, self._explain(error)), reply_to=message)
        else:
            self._states[node_id] = context.state
        set_message_id(reply, f"{message.metadata.message_id}-r")
        self._traffic.received += _size(reply)
        return reply

    def _context(self, node_id: int) -> Context:
        node_config: dict[str, Any] = {
            "site-index": node_id - 1,
            "site-count": self._clients,
            "partition-id": node_id - 1,
            "num-partitions": self._clients,
        }
        return Context(
            run_id=self._run.run_id,
            node_id=node_id,
            node_config=node_config,
            state=copy.deepcopy(self._states.get(node_id, RecordDict())),
            run_config=dict(self._run_config),
        )


def _own(content: RecordDict) -> RecordDict:
    """Return a message's content for one client, which may change it: what clients were sent
    together they must not share. Arrays themselves are read-only."""
    own = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            own[name] = record_of(record)
        elif isinstance(record, MetricRecord):
            own[name] = MetricRecord(dict(record))
        else:
            own[name] = ConfigRecord(dict(record))
    return own


def _size(message: Message) -> int:
    if not message.has_content():
        return 0
    return sum(_record_size(record) for record in message.content.array_records.values())


def _record_size(record: ArrayRecord) -> int:
    total = 0
    for array in record.values():
        if "tensor" in array.__dict__:
            tensor = tensors_of(ArrayRecord({"": array}))[""]
            count = 1
            for side in tensor.shape:
                count *= side
            total += count * tensor.dtype.itemsize
        else:
            total += len(array.data)
    return total
