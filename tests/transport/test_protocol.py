"""The wire changes only with its number: what it is, pinned."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from google.protobuf.descriptor import Descriptor

from meadow.flower.messages import identify_process, params_to_arrays, set_message_id
from meadow.transport import fleet_pb2 as pb
from meadow.transport.chunk_wire import Piece, pack_chunk, pack_upload_chunk, pack_upload_open
from meadow.transport.codec import BlobWriter, encode
from meadow.transport.protocol import PROTOCOL_VERSION
from meadow.transport.tensors import write_tensors

identify_process(run_id=1, node_id=0)

WIRES = {
    1: "64a7d9f85e3f2237",
    2: "cf6ced52b6cefe59",
    3: "3d986d91d51c3e6e",
    4: "df5dceac160c16d2",
    5: "d1b7ebbb094f8af5",
}
"""Each number and the fingerprint of its wire. If the test fails, the wire has changed: count
`PROTOCOL_VERSION` up, and write the new number here beside the new fingerprint."""

TENSORS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(7)}


def test_the_wire_changes_only_with_its_number(tmp_path: Path) -> None:
    """Messages by what of them travels, and what stands for all records and files of tensors."""
    wire = hashlib.sha256("\n".join([*sorted(messages()), *formats(tmp_path)]).encode())
    assert (PROTOCOL_VERSION, wire.hexdigest()[:16]) == max(WIRES.items())
    assert sorted(WIRES) == list(range(1, PROTOCOL_VERSION + 1))


def test_messages_between_local_processes_are_not_the_wire() -> None:
    """They may change at any time: both ends are of one installation."""
    names = {line.split(".")[0] for line in messages()}
    assert {"Instruction", "Reply", "EnrollRequest", "SubmitOpen", "Value"} <= names
    assert not names & {"WorkerStart", "TrainingWork", "AgentOrder", "DaemonMessage"}


def messages() -> Iterator[str]:
    """Yield a line for every call, and for every field that one of the calls can carry."""
    open_, seen = [], set()
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            yield f"{service.full_name}.{method.name}: {method.input_type.name} -> {method.output_type.name}"
            open_ += [method.input_type, method.output_type]
    while open_:
        message: Descriptor = open_.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            inner = field.message_type
            yield (
                f"{message.name}.{field.name} = {field.number}: {field.type}"
                f" {'repeated' if field.is_repeated else ''}"
                f" {inner.name if inner else ''}"
                f" {field.containing_oneof.name if field.containing_oneof else ''}"
            )
            if inner is not None:
                open_.append(inner)


def formats(folder: Path) -> Iterator[str]:
    """Yield the bytes of a record of each kind, of a file of tensors and of a chunk."""
    records = {
        "arrays": params_to_arrays(TENSORS),
        "metrics": MetricRecord({"loss": 0.5, "counts": [1, 2], "shares": [0.5]}),
        "config": ConfigRecord({"a": True, "b": "text", "c": b"bytes", "d": [True], "e": ["x"]}),
    }
    message = Message(RecordDict(records), 1, "train", group_id="1", ttl=5.0)  # type: ignore[arg-type]
    set_message_id(message, "1-a-0")
    envelope = encode(message, BlobWriter(folder))
    envelope.metadata.MergeFrom(pb.Metadata(run_id=1, src_node_id=2, created_at_s=1.0))
    yield envelope.SerializeToString(deterministic=True).hex()
    path = folder / "tensors.safetensors"
    write_tensors(path, TENSORS, fsync=False)
    yield path.read_bytes().hex()
    piece = Piece(offset=3, data=memoryview(b"abc"))
    opening = pb.UploadOpen(instruction_id="1-a-0", blob=pb.Blob(id="b", size_bytes=9), offset=3)
    for packed in (pack_chunk(piece), pack_upload_chunk(piece), pack_upload_open(opening)):
        yield bytes(packed).hex()
