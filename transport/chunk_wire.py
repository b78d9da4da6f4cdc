"""Chunks of a blob on the wire, without copies.

protobuf's classes copy a chunk's bytes three times on either side, which is most of the cost of a
transfer. These functions write and read the same wire format around the bytes in place. A message
with an unusual but valid encoding is parsed by protobuf.

Source: Protocol Buffers documentation, "Encoding": a field is a varint tag (number << 3 | type).
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from ..errors import ProtocolError
from .fleet_pb2 import Chunk, UploadMessage, UploadOpen

__all__ = ["Piece", "pack_chunk", "pack_upload_chunk", "pack_upload_open", "unpack_chunk",
           "unpack_upload"]  # fmt: skip

_OFFSET, _DATA = 0x08, 0x12  # Chunk: fields 1 (varint) and 2 (bytes)
_UPLOAD_CHUNK = 0x12  # UploadMessage: field 2
_VARINT_BYTES_MAX = 10


class Piece(NamedTuple):
    """A chunk: where it belongs, and its bytes."""

    offset: int
    data: bytes | memoryview


def pack_chunk(piece: Piece) -> bytes:
    """Return a piece as a serialised `Chunk`."""
    return b"".join(_parts(piece))


def pack_upload_chunk(piece: Piece) -> bytes:
    """Return a piece as a serialised `UploadMessage`."""
    parts = _parts(piece)
    size = sum(len(part) for part in parts)
    return b"".join((bytes((_UPLOAD_CHUNK,)), _varint(size), *parts))


def pack_upload_open(opening: UploadOpen) -> bytes:
    """Return the first message of an upload."""
    return UploadMessage(open=opening).SerializeToString()


def unpack_chunk(message: bytes) -> Piece:
    """Return the piece in a serialised `Chunk`; its data are a view of `message`.

    Raises:
        ProtocolError: it is none.
    """
    return _piece(memoryview(message))


def unpack_upload(message: bytes) -> Piece | UploadOpen:
    """Return what a serialised `UploadMessage` holds.

    Raises:
        ProtocolError: it is none, or empty.
    """
    view = memoryview(message)
    if len(view) and view[0] == _UPLOAD_CHUNK:
        size, start = _read_varint(view, 1)
        if start + size == len(view):
            return _piece(view[start:])
    try:
        parsed = UploadMessage.FromString(message)
    except DecodeError as error:
        raise ProtocolError(f"this is no message of an upload: {error}") from None
    if parsed.HasField("open"):
        return parsed.open
    if parsed.HasField("chunk"):
        return Piece(parsed.chunk.offset, parsed.chunk.data)
    raise ProtocolError("an empty message in an upload")


def _parts(piece: Piece) -> tuple[bytes | memoryview, ...]:
    head = bytes((_OFFSET,)) + _varint(piece.offset) if piece.offset else b""
    return head + bytes((_DATA,)) + _varint(len(piece.data)), piece.data


def _piece(view: memoryview) -> Piece:
    at, offset = 0, 0
    if len(view) and view[0] == _OFFSET:
        offset, at = _read_varint(view, 1)
    if at < len(view) and view[at] == _DATA:
        size, start = _read_varint(view, at + 1)
        end = start + size
        if end == len(view):
            return Piece(offset, view[start:end])
    try:
        chunk = Chunk.FromString(bytes(view))
    except DecodeError as error:
        raise ProtocolError(f"this is no chunk: {error}") from None
    return Piece(chunk.offset, chunk.data)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return a number and where it ends; beyond the end of `view` if it is malformed."""
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= len(view):
            break
        byte = view[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    return 0, len(view) + 1
