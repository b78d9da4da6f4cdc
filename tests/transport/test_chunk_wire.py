"""Chunks on the wire: the same bytes as protobuf's own, and only typed errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.errors import ProtocolError
from meadow.transport.chunk_wire import (
    Piece,
    pack_chunk,
    pack_upload_chunk,
    pack_upload_open,
    unpack_chunk,
    unpack_upload,
)
from meadow.transport.fleet_pb2 import Blob, Chunk, UploadMessage, UploadOpen

pieces = st.builds(
    Piece,
    st.integers(0, 2**63),
    st.binary(min_size=1, max_size=3000),
)


@given(pieces)
def test_same_bytes_as_protobuf(piece: Piece) -> None:
    """What is written by hand is what protobuf writes."""
    chunk = Chunk(offset=piece.offset, data=bytes(piece.data))
    assert pack_chunk(piece) == chunk.SerializeToString()
    assert pack_upload_chunk(piece) == UploadMessage(chunk=chunk).SerializeToString()


@given(pieces)
def test_reads_what_protobuf_writes(piece: Piece) -> None:
    """What protobuf writes is read back, zero fields included."""
    chunk = Chunk(offset=piece.offset, data=bytes(piece.data))
    assert unpack_chunk(chunk.SerializeToString()) == piece
    assert unpack_upload(UploadMessage(chunk=chunk).SerializeToString()) == piece


def test_fields_in_another_order() -> None:
    """A serialiser may write fields in any order."""
    head, body = Chunk(offset=7).SerializeToString(), Chunk(data=b"abc").SerializeToString()
    assert unpack_chunk(body + head) == Piece(7, b"abc")


def test_an_opening() -> None:
    """The first message of an upload is told apart from chunks."""
    opening = UploadOpen(instruction_id="1-a-0", blob=Blob(id="b", size_bytes=3), offset=2)
    assert unpack_upload(pack_upload_open(opening)) == opening


@given(st.binary(max_size=200))
def test_garbage_raises_typed_errors(message: bytes) -> None:
    """Anything else is a ProtocolError, or by chance a chunk."""
    for read in (unpack_chunk, unpack_upload):
        try:
            read(message)
        except ProtocolError:
            continue


def test_an_empty_upload_message_is_refused() -> None:
    """A message without a field is an error."""
    with pytest.raises(ProtocolError, match="empty"):
        unpack_upload(b"")
