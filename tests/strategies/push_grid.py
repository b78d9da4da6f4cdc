"""A grid in memory whose clients take a time of their own to answer what was pushed to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Error, Message

from meadow.flower.messages import set_message_id

from .conftest import MemoryGrid


class PushGrid(MemoryGrid):
    """Answers after `seconds[client]` of its own clock, which goes on when nothing else arrives."""

    def __init__(self, client: Any, seconds: Mapping[int, float]) -> None:
        super().__init__(client, seconds)
        self.seconds = seconds
        self.now_s = 0.0
        self.due: dict[str, tuple[float, Message]] = {}
        self.forgotten: list[str] = []
        self.asked_of: list[Message] = []

    def begin_at(self, now_s: float) -> None:
        self.now_s = now_s

    def forget(self, group_id: str) -> None:
        self.forgotten.append(group_id)
        due = self.due.items()
        self.due = {id_: (at, m) for id_, (at, m) in due if m.metadata.group_id != group_id}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.sent.append(message)
            ids.append(f"{message.metadata.group_id}-{len(self.sent)}")
            set_message_id(message, ids[-1])
            at_s = self.now_s + self.seconds[message.metadata.dst_node_id]
            self.due[ids[-1]] = (at_s, message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        asked = [(self.due[id_][0], id_) for id_ in message_ids if id_ in self.due]
        self.now_s = max(self.now_s, min(asked)[0])
        replies = []
        for _, id_ in sorted(each for each in asked if each[0] <= self.now_s):
            _, message = self.due.pop(id_)
            answer = self.client(message) or Error(4, "it never answered")
            replies.append(Message(answer, reply_to=message))
        return replies
