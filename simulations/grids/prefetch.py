"""Executes pushed messages together with others of their kind, before those are pulled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from flwr.app import Message, MessageType

from ...strategies.rounds.broadcast import Broadcast
from ..executors.contract import Executor

__all__ = ["Prefetch"]

ONE_BY_ONE = ("sequential",)
"""Executors for which many clients at once are no faster than one after another."""


class Prefetch:
    """Runs clients for a grid whose answers are asked for a few at a time.

    Where many at once are faster, a client that is asked for is run with all that wait with the
    same content, and have nothing else to do: what these answer is kept until it is asked for.

    Guarantees: what a client answers depends on its message alone, as always; so whom it is run
        with changes nothing but the last digits.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._early: dict[str, Message] = {}

    def execute(self, asked: Sequence[Message], waiting: Iterable[Message]) -> list[Message]:
        """Return the replies to the messages that are asked for; others wait, and may be run."""
        missing = [message for message in asked if _id(message) not in self._early]
        together = self._executor.name not in ONE_BY_ONE
        later = [m for m in waiting if _id(m) not in self._early] if missing and together else []
        for group in _alike(missing, later):
            self._early.update(self._run(group))
        return [self._early.pop(_id(message)) for message in asked]

    def forget(self, ids: Iterable[str]) -> None:
        """Drop replies that will not be pulled."""
        for id_ in ids:
            self._early.pop(id_, None)

    def _run(self, group: list[Message]) -> dict[str, Message]:
        """Run messages of one content; return the replies by the ids of the messages."""
        by_client = {message.metadata.dst_node_id: message for message in group}
        head = group[0]
        kind = head.metadata.message_type
        if self._executor.name in ONE_BY_ONE or kind != MessageType.TRAIN:
            return {
                reply.metadata.reply_to_message_id: reply for reply in self._executor.execute(group)
            }
        order = Broadcast(head.content, kind, list(by_client), group_id=head.metadata.group_id)
        return {
            _id(by_client[reply.metadata.src_node_id]): _to(
                by_client[reply.metadata.src_node_id], reply
            )
            for reply in self._executor.execute(order.numbered("ahead-"))
        }


def _alike(missing: Sequence[Message], later: Sequence[Message]) -> list[list[Message]]:
    """Return groups of one content and different clients: all missing messages, and later ones."""
    owed = Counter(message.metadata.dst_node_id for message in (*missing, *later))
    groups: dict[tuple[int, str, int], list[Message]] = {}
    for message in missing:
        client = message.metadata.dst_node_id
        alone = client if owed[client] > 1 else 0
        groups.setdefault((*_what(message), alone), []).append(message)
    for message in later:
        if owed[message.metadata.dst_node_id] == 1 and (*_what(message), 0) in groups:
            groups[*_what(message), 0].append(message)
    return list(groups.values())


def _what(message: Message) -> tuple[int, str]:
    return id(message.content), message.metadata.message_type


def _to(message: Message, reply: Message) -> Message:
    """Return a reply as the answer to the message that it is for."""
    if reply.has_error():
        return Message(reply.error, reply_to=message)
    return Message(reply.content, reply_to=message)


def _id(message: Message) -> str:
    return str(message.metadata.message_id)
