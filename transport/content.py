"""Stores records on disk, as bytes and files of tensors: a client's state between rounds."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Metadata, RecordDict
from google.protobuf.message import DecodeError

from ..errors import ProtocolError
from ..flower.messages import rebuild_message
from .blobs import blob_path
from .codec import decode, encode
from .fleet_pb2 import Envelope
from .writer import BlobWriter

__all__ = ["pack_content", "unpack_content"]


def pack_content(content: RecordDict, blobs: BlobWriter) -> bytes:
    """Return `content` as bytes, and write its arrays to the writer's folder.

    Raises:
        ProtocolError: a value of it cannot be stored.
        StoreError: a file cannot be written.
    """
    metadata = Metadata(0, "", 0, 0, "", "", 0.0, 0.0, "query")
    return encode(rebuild_message(metadata, content), blobs).SerializeToString()


def unpack_content(packed: bytes, folder: Path) -> RecordDict:
    """Return the content that `pack_content` stored; arrays are read when they are used.

    Raises:
        ProtocolError, StoreError: the bytes or the files are damaged.
    """
    try:
        envelope = Envelope.FromString(packed)
    except DecodeError:
        raise ProtocolError(f"{len(packed)} bytes of records are damaged") from None
    message = decode(envelope, lambda blob: blob_path(folder, blob.id))
    if not message.has_content():
        raise ProtocolError("where records were expected there is an error, or nothing")
    return message.content
