"""What a client keeps, as one string of bytes: its records, with the tensors behind them.

The layout: four bytes, big-endian, with the length of an envelope of `fleet.proto`; the envelope;
the files of tensors that it names, in its order, each of the length in the envelope.
"""

from __future__ import annotations

import struct
from pathlib import Path

from flwr.app import RecordDict
from google.protobuf.message import DecodeError

from ...errors import ProtocolError
from ...transport.blobs import blob_path, blobs_of
from ...transport.content import pack_content, unpack_content
from ...transport.fleet_pb2 import Blob, Envelope
from ...transport.writer import BlobWriter

__all__ = ["pack_state", "unpack_state"]

_LENGTH = struct.Struct(">I")


def pack_state(state: RecordDict, scratch: Path) -> bytes:
    """Return a client's state as bytes; `scratch` is a folder for files on the way.

    Raises:
        ProtocolError: something in it cannot be stored.
        StoreError: a file cannot be written.
    """
    packed = pack_content(state, BlobWriter(scratch, fsync=False))
    parts = [_LENGTH.pack(len(packed)), packed]
    for blob in _blobs_of(packed):
        path = blob_path(scratch, blob.id)
        parts.append(path.read_bytes())
        path.unlink()
    return b"".join(parts)


def unpack_state(data: bytes, scratch: Path) -> RecordDict:
    """Return a new copy of what `pack_state` was given.

    Raises:
        ProtocolError: the bytes are damaged.
        StoreError: a file cannot be written or read.
    """
    if len(data) < _LENGTH.size:
        raise ProtocolError(f"a client's state of {len(data)} bytes is cut short")
    start = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    packed = data[_LENGTH.size : start]
    paths = []
    try:
        for blob in _blobs_of(packed):
            paths.append(blob_path(scratch, blob.id))
            paths[-1].write_bytes(data[start : start + blob.size_bytes])
            start += blob.size_bytes
        if start != len(data):
            raise ProtocolError(f"a client's state has {len(data)} bytes, not {start}")
        return unpack_content(packed, scratch)  # the files stay open, and need no names
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _blobs_of(packed: bytes) -> list[Blob]:
    """Return the files that an envelope names, each once."""
    try:
        return blobs_of(Envelope.FromString(packed))
    except DecodeError as error:
        raise ProtocolError(f"a client's state cannot be read: {error}") from None
