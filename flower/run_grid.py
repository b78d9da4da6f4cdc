"""What grids of ours have in common: the run that they belong to, or another grid inside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

__all__ = ["RunGrid", "WrappedGrid"]


class RunGrid(Grid):
    """A Flower Grid that belongs to one run."""

    def __init__(self, run_id: int) -> None:
        self._run = Run.create_empty(run_id)

    def set_run(self, run: Run) -> None:
        """Set the run that this grid belongs to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that this grid belongs to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message for a client."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


class WrappedGrid(Grid):
    """A Grid over another one. Whatever else the inner grid can do, this one can too."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        if name == "_grid":  # not there yet: somebody copies this object
            raise AttributeError(name)
        return getattr(self._grid, name)

    def set_run(self, run: Run) -> None:
        """Set the run that the grid belongs to."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run that the grid belongs to."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message for a client."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the clients that are there."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the clients that are there, with what is known of them."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their replies are fetched with `pull_messages`."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived to messages that were pushed."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return their replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)
