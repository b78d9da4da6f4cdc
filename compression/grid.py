"""`CompressionGrid`: wraps any Flower grid and compresses the params in its messages.

    strategy.start(CompressionGrid(grid, CompressionTerms(upload="int8")), arrays)

The strategy sends and receives plain params. Every instruction has the terms by which clients
compress their replies (`meadow.compression.client`); uncompressed replies are accepted too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from ..errors import MeadowError, RunError
from ..flower.messages import arrays_to_params, params_to_arrays, rebuild_message
from ..flower.run_grid import WrappedGrid
from ..randomness.seeds import derive
from ..strategies.algorithms.algorithm import Params
from ..strategies.rounds.broadcast import Broadcast
from ..strategies.rounds.checks import forms_of
from .packet import Packer, is_packed, require_zstd
from .terms import FORMS, RECORD, CompressionTerms, forms_text

__all__ = ["CompressionGrid", "upload_seed"]

COMPRESSED = ("train", "evaluate")
UNREADABLE = 4
"""Flower's code for a reply that is not available. Source: flwr 1.41, ErrorCode."""


class CompressionGrid(WrappedGrid):
    """A Grid that wraps another one and compresses the params in its messages.

    A reply's params are those that the strategy sent, plus the client's delta: the rounding of
    the downloaded params is not in the model.

    Guarantees: equal params are sent as equal bytes. A reply that cannot be unpacked becomes an
        error reply of its client.
    """

    def __init__(self, grid: Grid, terms: CompressionTerms) -> None:
        """Wrap a grid.

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
        self._sent: tuple[ArrayRecord, ArrayRecord, str] | None = None
        """The last params, and their packed record."""

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
        content, record = RecordDict(dict(batch.content)), self._terms.record()
        content[name], record[FORMS] = self._packed(arrays)
        content[RECORD] = record
        packed = Broadcast(content, batch.message_type, batch.clients, group_id=batch.group_id)
        replies = self._grid.send_and_receive(packed, timeout=timeout)
        return self._unpacked(replies, arrays_to_params(arrays), batch.group_id)

    # ------------------------------------------------------------------ parts of it

    def _packed(self, arrays: ArrayRecord) -> tuple[ArrayRecord, str]:
        if self._terms.download == "none":
            return arrays, ""
        if self._sent is None or self._sent[0] is not arrays:
            params = arrays_to_params(arrays)
            packer = Packer(forms_of(params), self._terms, self._terms.download)
            row = packer.row_of(params)
            packed, _ = packer.pack(
                row, params, derive(self._terms.seed, zlib.crc32(row.tobytes()))
            )
            self._sent = arrays, packed, forms_text(params)
        return self._sent[1:]

    def _unpacked(
        self, replies: Iterable[Message], sent: Params, group_id: str
    ) -> Iterator[Message]:
        packer = Packer(forms_of(sent), self._terms, self._terms.upload)
        for reply in replies:
            names = list(reply.content.array_records) if reply.has_content() else []
            if len(names) == 1 and is_packed(reply.content.array_records[names[0]]):
                yield self._unpacked_one(packer, reply, names[0], sent, group_id)
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
