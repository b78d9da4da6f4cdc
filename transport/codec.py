"""Flower messages to envelopes and back: tensors become blobs, the rest small protobufs.

An `ArrayRecord` becomes one file in a folder of blobs, or in the envelope if it is small. Arrays
that are no tensors (another library's bytes, or a dtype that files of tensors lack) travel in the
same file as plain bytes and come back as the same Flower `Array`. Nothing names a type that the
other side would load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app import Metadata as FlowerMetadata

from ..errors import LimitError, ProtocolError
from ..flower.messages import (
    NUMPY_STYPE,
    FlatTensor,
    TensorArray,
    rebuild_message,
    record_of,
    tensor_of,
)
from .blobs import check_blob_id
from .entries import EntryValue, pack_entries, unpack_entries
from .fields import ERROR_CHARS_MAX, check_fields
from .fleet_pb2 import AppError, ArrayInfo, Arrays, Blob, Entries, Envelope, Metadata, Record
from .header import CODES, DIMENSIONS_MAX, TENSORS_MAX, check_name
from .packed import PACKED_BYTES_MAX, unpack_tensors
from .tensors import TensorFile
from .writer import BlobWriter

__all__ = [
    "ENTRIES_BYTES_MAX",
    "ENVELOPE_BYTES_MAX",
    "RECORDS_MAX",
    "BlobWriter",
    "check_size",
    "decode",
    "encode",
]

RECORDS_MAX: Final = 256
ENTRIES_BYTES_MAX: Final = 4 << 20
"""For everything in an envelope but the descriptions of arrays."""
ENVELOPE_BYTES_MAX: Final = 32 << 20
"""For a whole envelope; what describes 100,000 arrays with usual names fits."""
PLAIN_BYTES_MAX: Final = 256 << 20
"""For the arrays of one message that are no tensors: they are read into memory."""


def encode(message: Message, blobs: BlobWriter) -> Envelope:
    """Return `message` as an envelope, and write its large arrays to `blobs`.

    Guarantees: the names and the order of the records and of their values are kept, and a bool
        stays a bool. A record that was just written is not written again.
    Raises:
        ProtocolError: something in it cannot be sent, or (LimitError) is too much.
        StoreError: a blob cannot be written.
    """
    envelope = Envelope(metadata=_pack_metadata(message))
    if message.has_error():
        # A file's name in a traceback may hold what is no text.
        reason = (message.error.reason or "").encode("utf-8", "replace").decode()
        reason = reason[:ERROR_CHARS_MAX]
        envelope.error.CopyFrom(AppError(code=message.error.code, reason=reason))
    else:
        content = message.content
        _check_count("records", len(content), RECORDS_MAX)
        arrays = (record for record in content.values() if isinstance(record, ArrayRecord))
        _check_count("arrays", sum(len(record) for record in arrays), TENSORS_MAX)
        envelope.records.extend(_pack(name, record, blobs) for name, record in content.items())
    check_size(envelope)
    return envelope


def decode(envelope: Envelope, open_blob: Callable[[Blob], Path]) -> Message:
    """Return the message in an envelope; its arrays stay in their files until they are used.

    `open_blob` returns the path of a blob. It receives well-formed ids only, and has to check whether this
    sender may refer to that blob.

    Raises:
        ProtocolError: the envelope is not what the protocol allows, or (LimitError) too large;
            or a blob is not what the envelope says.
        StoreError: a blob cannot be read.
    """
    check_size(envelope)
    check_fields(envelope)
    metadata = _unpack_metadata(envelope.metadata)
    if envelope.HasField("error"):
        if envelope.records:
            raise ProtocolError("an envelope has both records and an error")
        return rebuild_message(metadata, Error(envelope.error.code, envelope.error.reason or None))
    _check_count("records", len(envelope.records), RECORDS_MAX)
    infos = sum(len(record.arrays.infos) for record in envelope.records)
    _check_count("arrays", infos, TENSORS_MAX)
    content, plain = RecordDict(), _Plain()
    for record in envelope.records:
        if check_name(record.name, "record") in content:
            raise ProtocolError(f"the record {record.name!r} is there twice")
        content[record.name] = _unpack(record, open_blob, plain)
    return rebuild_message(metadata, content)


def _check_count(what: str, count: int, count_max: int) -> None:
    if count > count_max:
        raise LimitError(f"{count} {what} in one message, more than {count_max}")


def check_size(envelope: Envelope) -> None:
    """Check that an envelope is not too large to be decoded.

    Raises:
        LimitError: it is.
    """
    for record in envelope.records:
        if len(record.arrays.packed) > PACKED_BYTES_MAX:
            size = len(record.arrays.packed)
            raise LimitError(f"{size} bytes of tensors in a message, more than {PACKED_BYTES_MAX}")
    whole = envelope.ByteSize()
    arrays = sum(record.arrays.ByteSize() for record in envelope.records)
    if whole - arrays > ENTRIES_BYTES_MAX:
        raise LimitError(
            f"{whole - arrays} bytes of metrics and configuration in one message, "
            f"more than {ENTRIES_BYTES_MAX}"
        )
    if whole > ENVELOPE_BYTES_MAX:
        raise LimitError(f"an envelope of {whole} bytes, more than {ENVELOPE_BYTES_MAX}")


# ------------------------------------------------------------------------ metadata


def _pack_metadata(message: Message) -> Metadata:
    source = message.metadata
    try:
        metadata = Metadata(
            run_id=source.run_id,
            message_id=source.message_id,
            src_node_id=source.src_node_id,
            dst_node_id=source.dst_node_id,
            reply_to_message_id=source.reply_to_message_id,
            group_id=source.group_id,
            created_at_s=source.created_at,
            ttl_s=source.ttl,
            message_type=source.message_type,
        )
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"a message's metadata cannot be sent: {error}") from None
    check_fields(metadata)
    return metadata


def _unpack_metadata(metadata: Metadata) -> FlowerMetadata:
    try:
        return FlowerMetadata(
            run_id=metadata.run_id,
            message_id=metadata.message_id,
            src_node_id=metadata.src_node_id,
            dst_node_id=metadata.dst_node_id,
            reply_to_message_id=metadata.reply_to_message_id,
            group_id=metadata.group_id,
            created_at=metadata.created_at_s,
            ttl=metadata.ttl_s,
            message_type=metadata.message_type,
        )
    except ValueError as error:  # Flower knows which types there are
        raise ProtocolError(str(error)) from None


# ------------------------------------------------------------------------- records


def _pack(name: str, record: object, blobs: BlobWriter) -> Record:
    check_name(name, "record")
    if isinstance(record, ArrayRecord):
        return Record(name=name, arrays=blobs.put(record))
    assert isinstance(record, MetricRecord | ConfigRecord), "Flower has three kinds of records"
    entries = Entries(entries=pack_entries(cast(dict[str, EntryValue], record)))
    if isinstance(record, MetricRecord):
        return Record(name=name, metrics=entries)
    return Record(name=name, configs=entries)


class _Plain:
    """Counts the bytes of a message that are read into memory, before they are."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, count: int) -> None:
        self._sum += count
        if self._sum > PLAIN_BYTES_MAX:
            raise LimitError(f"arrays of {self._sum} plain bytes, more than {PLAIN_BYTES_MAX}")


def _unpack(
    record: Record, open_blob: Callable[[Blob], Path], plain: _Plain
) -> ArrayRecord | MetricRecord | ConfigRecord:
    kind = record.WhichOneof("kind")
    if kind == "arrays":
        return _unpack_arrays(record.name, record.arrays, open_blob, plain)
    try:
        if kind == "metrics":
            return MetricRecord(unpack_entries(record.metrics.entries))  # type: ignore[arg-type]
        if kind == "configs":
            return ConfigRecord(unpack_entries(record.configs.entries))
    except TypeError as error:  # Flower knows which values a metric may have
        raise ProtocolError(f"the record {record.name!r}: {error}") from None
    raise ProtocolError(f"the record {record.name!r} is of an unknown kind")


def _unpack_arrays(
    name: str, arrays: Arrays, open_blob: Callable[[Blob], Path], plain: _Plain
) -> ArrayRecord:
    found = (
        unpack_tensors(arrays.packed) if arrays.HasField("packed") else _in_file(arrays, open_blob)
    )
    if tuple(found) != tuple(info.name for info in arrays.infos):
        raise ProtocolError(f"the record {name!r} holds other arrays than it says")
    tensors = found.values()
    pairs = zip(arrays.infos, tensors, strict=True)
    # These are read, where tensors stay in their file.
    plain.add(sum(math.prod(tensor.shape) for info, tensor in pairs if not _is_tensor(info)))
    return record_of(dict(_unpack_array(*pair) for pair in zip(arrays.infos, tensors, strict=True)))


def _in_file(arrays: Arrays, open_blob: Callable[[Blob], Path]) -> Mapping[str, FlatTensor]:
    blob = arrays.blob
    check_blob_id(blob.id)
    file = TensorFile.open(open_blob(blob), size_max=blob.size_bytes)
    if file.size_bytes != blob.size_bytes:
        raise ProtocolError(f"blob {blob.id} has {file.size_bytes} bytes, not {blob.size_bytes}")
    return file.tensors


def _unpack_array(info: ArrayInfo, tensor: FlatTensor) -> tuple[str, Array]:
    shape = tuple(info.shape)
    if len(shape) > DIMENSIONS_MAX:
        raise LimitError(f"array {info.name!r} has {len(shape)} dimensions, > {DIMENSIONS_MAX}")
    if _is_tensor(info):
        _check_tensor(info, tensor.dtype.name, tensor.shape)
        return info.name, TensorArray(tensor)
    for text in (info.dtype, info.stype):
        check_name(text, "type")
    if tensor.dtype.name != "uint8" or len(tensor.shape) != 1:
        raise ProtocolError(f"array {info.name!r} is of the type {info.stype!r}, not plain bytes")
    array = Array(info.dtype, shape, info.stype, tensor[:].tobytes())
    if info.stype == NUMPY_STYPE:  # .npy: what hides Python objects is refused
        values = tensor_of(info.name, array)
        _check_tensor(info, str(values.dtype), values.shape)
    return info.name, array


def _is_tensor(info: ArrayInfo) -> bool:
    return info.stype == NUMPY_STYPE and info.dtype in CODES


def _check_tensor(info: ArrayInfo, dtype: str, shape: tuple[int, ...]) -> None:
    if (dtype, shape) != (info.dtype, tuple(info.shape)):
        stated = f"{info.dtype} {tuple(info.shape)}"
        raise ProtocolError(f"array {info.name!r} is {dtype} {shape}, not {stated:.200}")
