"""`CompressionGrid`: wraps any Flower grid and compresses the params in its messages.

    strategy.start(CompressionGrid(grid, CompressionTerms(upload="int8")), arrays)

The strategy sends and receives plain params. Every instruction has the terms by which clients
compress their replies (`meadow.compression.client`); uncompressed replies are accepted too.

Under `auto`, clients whose lines are slow get other terms than the rest of their cohort. What a
client was told is in its instruction, which the server's journal keeps; a reply shows by itself
whether it is compressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.serverapp import Grid
from zlib_ng.zlib_ng import crc32

from ..errors import MeadowError, RunError
from ..flower.messages import arrays_to_params, params_to_arrays, rebuild_message
from ..flower.run_grid import WrappedGrid
from ..randomness.seeds import derive
from ..strategies.algorithms.algorithm import Params
from ..strategies.rounds.broadcast import Broadcast
from ..strategies.rounds.checks import forms_of
from .packet import Packer, is_packed, require_zstd
from .terms import AUTO, FORMS, RECORD, CompressionTerms, forms_text

__all__ = ["CompressionGrid", "upload_seed"]

COMPRESSED = ("train", "evaluate")
LISTED_MAX = 20
"""How many clients an event names."""
UNREADABLE = 4
"""Flower's code for a reply that is not available. Source: flwr 1.41, ErrorCode."""


class CompressionGrid(WrappedGrid):
    """A Grid that wraps another one and compresses the params in its messages.

    A reply's params are those that the strategy sent, plus the client's delta: the rounding of
    the downloaded params is not in the model.

    Guarantees: equal params are sent as equal bytes. A reply that cannot be unpacked becomes an
        error reply of its client.
    """

    def __init__(
        self,
        grid: Grid,
        terms: CompressionTerms,
        *,
        emit: Callable[[str, Mapping[str, Any]], None] = lambda kind, detail: None,
    ) -> None:
        """Wrap a grid; `emit` is told for which clients `auto` chose to compress.

        The grid's `slow_lines` has the clients whose lines are slow, with their rates in bytes per
        second; a grid without it has no slow lines.

        Raises:
            ConfigError: the terms need zstandard, which is not installed.
            RunError: the grid sums updates; compressed updates cannot be summed.
        """
        if terms.zstd:
            require_zstd()
        if getattr(grid, "combines_updates", False):
            raise RunError(
                f"{type(grid).__name__} sums updates, and compressed updates cannot be summed"
            )
        super().__init__(grid)
        self._terms = terms
        self._emit = emit
        self._sent: tuple[ArrayRecord, ArrayRecord, str] | None = None
        """The last params, and their packed record."""
        self._compressed: set[int] = set()
        """The clients for which `auto` chose to compress when they were last asked."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Compress the instructions to train or evaluate, and return the replies unpacked.

        Raises:
            RunError: the clients' instructions differ.
        """
        batch = messages if isinstance(messages, Broadcast) else _broadcast(list(messages))
        if batch is None or batch.message_type.partition(".")[0] not in COMPRESSED:
            return self._grid.send_and_receive(
                messages if batch is None else batch, timeout=timeout
            )
        (name,) = batch.content.array_records
        arrays = batch.content.array_records[name]
        replies = self._grid.send_and_receive(self._instructions(batch, name), timeout=timeout)
        return self._unpacked(replies, arrays, batch.group_id)

    # ------------------------------------------------------------------ parts of it

    def _instructions(self, batch: Broadcast, name: str) -> Sequence[Message]:
        """Return the instructions with the terms, in the clients' order."""
        slow = self._slow_in(batch)
        if len(slow) in (0, len(batch)):
            content = self._content(batch, name, slow=bool(slow))
            return Broadcast(content, batch.message_type, batch.clients, group_id=batch.group_id)
        contents = [self._content(batch, name, slow=each) for each in (False, True)]
        return [
            Message(contents[client in slow], client, batch.message_type, group_id=batch.group_id)
            for client in batch.clients
        ]

    def _content(self, batch: Broadcast, name: str, *, slow: bool) -> RecordDict:
        terms = self._terms.of_line(slow=slow)
        if terms.upload == terms.download == "none":
            return batch.content
        content, record = RecordDict(dict(batch.content)), terms.record()
        content[name], record[FORMS] = self._packed(batch.content.array_records[name], terms)
        content[RECORD] = record
        return content

    def _packed(self, arrays: ArrayRecord, terms: CompressionTerms) -> tuple[ArrayRecord, str]:
        if terms.download == "none":
            return arrays, ""
        if self._sent is None or self._sent[0] is not arrays:
            params = arrays_to_params(arrays)
            packer = Packer(forms_of(params), terms, terms.download)
            row = packer.row_of(params)
            packed, _ = packer.pack(row, params, derive(terms.seed, crc32(row)))
            self._sent = arrays, packed, forms_text(params)
        return self._sent[1:]

    def _slow_in(self, batch: Broadcast) -> Mapping[int, int]:
        """Return the clients of a broadcast for which `auto` compresses, with their lines' rates."""
        if AUTO not in (self._terms.upload, self._terms.download):
            return {}
        lines: Mapping[int, int] = getattr(self._grid, "slow_lines", {})
        slow = {client: lines[client] for client in batch.clients if client in lines}
        cohort_of = getattr(self._grid, "cohort_of", lambda group_id: ())
        if not cohort_of(batch.group_id):  # else it is in the journal what an earlier worker chose
            self._tell(batch, slow)
        return slow

    def _tell(self, batch: Broadcast, slow: Mapping[int, int]) -> None:
        """Emit for which clients the choice is another one than when they were last asked."""
        begun = [client for client in batch.clients if client in slow.keys() - self._compressed]
        ended = [client for client in batch.clients if client in self._compressed - slow.keys()]
        self._compressed = (self._compressed | slow.keys()).difference(ended)
        if not begun and not ended:
            return
        name_of = getattr(self._grid, "name_of", lambda client: None)
        names = {client: name_of(client) or f"client {client}" for client in begun + ended}
        chosen = self._terms.of_line(slow=True)
        self._emit(
            "compression_chosen",
            {
                "round": int(batch.group_id) if batch.group_id.isdecimal() else batch.group_id,
                "upload": chosen.upload,
                "download": chosen.download,
                "slow": _listed([f"{names[c]} ({slow[c] * 8e-6:.3g} Mbit/s)" for c in begun]),
                "no_longer_slow": _listed([names[client] for client in ended]),
            },
        )

    def _unpacked(
        self, replies: Iterable[Message], sent: ArrayRecord, group_id: str
    ) -> Iterator[Message]:
        packer = None
        for reply in replies:
            names = list(reply.content.array_records) if reply.has_content() else []
            if len(names) == 1 and is_packed(reply.content.array_records[names[0]]):
                if packer is None:
                    params = arrays_to_params(sent)
                    terms = self._terms.of_line(slow=True)
                    packer = Packer(forms_of(params), terms, terms.upload)
                yield self._unpacked_one(packer, reply, names[0], params, group_id)
            else:
                yield reply

    def _unpacked_one(
        self, packer: Packer, reply: Message, name: str, sent: Params, group_id: str
    ) -> Message:
        seed = upload_seed(self._terms, group_id, reply.metadata.src_node_id)
        try:
            row, others = packer.unpack(reply.content.array_records[name], seed)
            reply.content[name] = params_to_arrays(packer.params_of(row, others, sent))
        except MeadowError as error:
            return rebuild_message(reply.metadata, Error(UNREADABLE, str(error)))
        return reply


def upload_seed(terms: CompressionTerms, group_id: str, client: int) -> int:
    """Return the seed of the random choices in a client's reply."""
    return derive(terms.seed, group_id, client, "compression")


def _listed(words: Sequence[str]) -> str:
    more = len(words) - LISTED_MAX
    return ", ".join(words[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def _broadcast(messages: Sequence[Message]) -> Broadcast | None:
    """Return messages of equal content as one broadcast; None for no messages."""
    if not messages:
        return None
    first = messages[0]
    if any(message.content is not first.content for message in messages):
        raise RunError("clients must get the same instruction, as it is compressed once for all")
    head = first.metadata
    clients = [message.metadata.dst_node_id for message in messages]
    return Broadcast(first.content, head.message_type, clients, group_id=head.group_id)
