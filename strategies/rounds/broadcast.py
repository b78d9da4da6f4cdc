"""One instruction for a whole cohort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from ...flower.messages import copy_for, extended

__all__ = ["Broadcast", "instruction_for_all"]


class Broadcast(Sequence[Message]):
    """The same content for every client of a cohort.

    For a Flower Grid it is a sequence of messages, each made when it is first asked for and kept:
    Flower's grids pass over it twice and number the messages on the way. A grid that knows this
    class need not make any.
    """

    __slots__ = ("_first", "_made", "clients", "content", "group_id", "id_prefix", "message_type")

    def __init__(
        self,
        content: RecordDict,
        message_type: str,
        clients: Sequence[int],
        *,
        group_id: str,
        id_prefix: str = "",
    ) -> None:
        """With an `id_prefix` messages have ids: the prefix and the client."""
        self.content = content
        self.message_type = message_type
        self.clients = clients
        self.group_id = group_id
        self.id_prefix = id_prefix
        self._first: Message | None = None
        self._made: dict[int, Message] = {}

    def __len__(self) -> int:
        return len(self.clients)

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> Broadcast: ...
    def __getitem__(self, place: int | slice) -> Message | Broadcast:
        if isinstance(place, slice):
            return self.to(self.clients[place])
        place = range(len(self))[place]
        if place not in self._made:
            client = self.clients[place]
            if self._first is None:
                kind, group = self.message_type, self.group_id
                self._first = Message(self.content, client, kind, group_id=group)
            self._made[place] = copy_for(self._first, client)
        return self._made[place]

    def to(self, clients: Sequence[int]) -> Broadcast:
        """Return the same instruction for other clients."""
        return Broadcast(
            self.content,
            self.message_type,
            clients,
            group_id=self.group_id,
            id_prefix=self.id_prefix,
        )

    def numbered(self, prefix: str) -> Broadcast:
        """Return the same broadcast, its messages with ids."""
        numbered = self.to(self.clients)
        numbered.id_prefix = prefix
        return numbered


def instruction_for_all(
    kind: str,
    number: int,
    clients: Sequence[int],
    arrays: ArrayRecord,
    config: ConfigRecord,
    extra: Mapping[str, float | int | str | bool],
) -> Broadcast:
    """Return a round's instruction of one kind: `config` and the algorithm's own keys."""
    settings = extended(config, {**extra, "server-round": number})
    content = RecordDict({"arrays": arrays, "config": settings})
    return Broadcast(content, kind, clients, group_id=str(number))
