"""The sequential executor: one client after another, in the order of the messages.

It is the reference for every other way of running clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from flwr.app import Message
from flwr.clientapp import ClientApp

from ...flower.messages import content_bytes, own_copy
from ..population.clients import SimulatedClients
from .contract import EventSink, error_reply

__all__ = ["SequentialExecutor"]

TOGETHER_BYTES = 1 << 20
TOGETHER_MAX = 64
"""So many replies, as large as what was sent, are held until they are handed over together. Small clients
train in less time if what makes their messages and checks their replies does not run in between, where
it takes their place in the processor's caches."""


class SequentialExecutor:
    """Runs a ClientApp, Meadow's or anybody's, in this process.

    With more than one of `threads` torch computes with so many; with one, as the process does.
    """

    name = "sequential"
    combines = False

    def __init__(
        self,
        client_app: ClientApp,
        clients: SimulatedClients,
        *,
        threads: int = 1,
        sink: EventSink | None = None,
    ) -> None:
        self._client_app = client_app
        self._clients = clients
        self._threads = threads
        self._sink = sink or EventSink()

    def execute(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Run a few clients, or one with large params, whenever a reply is asked for."""
        run = self._run if self._threads == 1 else self._run_threaded
        left = iter(messages)
        for first in left:
            count = min(TOGETHER_MAX, TOGETHER_BYTES // max(1, content_bytes(first)))
            yield from [run(message) for message in [first, *islice(left, max(0, count - 1))]]

    def close(self) -> None:
        """Nothing is held."""

    def _run_threaded(self, message: Message) -> Message:
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            return self._run(message)
        finally:
            torch.set_num_threads(before)

    def _run(self, message: Message) -> Message:
        node_id = message.metadata.dst_node_id
        try:
            context = self._clients.context_of(node_id)
            message.content = own_copy(message.content)
            reply = self._client_app(message, context)
            self._clients.keep_state(node_id, context.state)
        except Exception as error:  # a client app may raise anything
            return error_reply(message, error, self._sink)
        return reply
