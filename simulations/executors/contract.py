"""What every executor does: instructions in, replies out."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Error, Message

__all__ = ["EventSink", "Executor", "error_reply"]

APP_RAISED = 2
"""Flower's error code for an exception in a client app."""


class Executor(Protocol):
    """Runs clients.

    `combines`: one reply to a train instruction may stand for many clients; then its
    metrics list them (`strategies.combined`).
    """

    @property
    def name(self) -> str: ...
    @property
    def combines(self) -> bool: ...

    def execute(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Run the clients that `messages` are for and yield their replies, in any order.

        Guarantees: every message is answered once, by a reply of its own or by a combined one;
            what a client raises is an error reply. The replies depend on the messages and on
            what clients keep, not on time or order.
        """

    def close(self) -> None:
        """Give back processes and memory; the executor is of no use afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSink:
    """Receives the errors of clients' code and the executor's events.

    Attributes:
        traceback: called with a client's node id and the traceback of its error.
        explain: returns one line on an error.
        took: called with a client's node id and the seconds that it took, by an executor that hands
            several replies over at once.
    """

    traceback: Callable[[int, str], None] = lambda node_id, text: None
    explain: Callable[[Exception], str] = lambda error: f"{type(error).__name__}: {error}"
    took: Callable[[int, float], None] = lambda node_id, seconds: None
    event: Callable[[str, Mapping[str, object]], None] = lambda kind, detail: None
    """Called with the kind and the detail of the executor's own events, such as a lost worker."""


def error_reply(message: Message, error: Exception, sink: EventSink) -> Message:
    """Return the error reply of a client whose app raised, and pass the traceback to the sink."""
    text = "".join(traceback.format_exception(error))
    sink.traceback(message.metadata.dst_node_id, text)
    return Message(Error(APP_RAISED, sink.explain(error)), reply_to=message)
