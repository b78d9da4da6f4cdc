"""How far an answer is from what was received: the norm that the owner's log has for an update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ...flower.messages import FlatTensor
from ...transport.blobs import blob_path
from ...transport.fleet_pb2 import Arrays, Envelope
from ...transport.packed import unpack_tensors
from ...transport.tensors import TensorFile

__all__ = ["update_norm"]

FLOATS: Final = {"bfloat16", "float16", "float32", "float64"}
BLOCK_VALUES: Final = 1 << 16

Tensors = Mapping[str, FlatTensor]


def update_norm(
    answer: Envelope, instruction: Envelope, *, reply_dir: Path, blob_dir: Path
) -> float | None:
    """Return the L2 norm of the update in an answer: of its tensors less those of the instruction.

    Both are read as they are on the disk, where the answer is sent from. A tensor is compared with that of
    its name and shape in the instruction's record of the same name, or in its only one; without such a
    tensor it counts whole. Only floating-point tensors count.

    Edge cases: None for an answer without floating-point tensors, as one that is compressed or masked, and
        for a norm that is not finite.
    Raises:
        StoreError, ProtocolError: a file of the answer cannot be read.
    """
    received = _tensors(instruction, blob_dir)
    squares = [
        _distance_squared(tensor, _counterpart(record, name, tensor, received))
        for record, tensors in _tensors(answer, reply_dir).items()
        for name, tensor in tensors.items()
        if tensor.dtype.name in FLOATS
    ]
    norm = math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.inf
    return norm if squares and math.isfinite(norm) else None


def _tensors(envelope: Envelope, folder: Path) -> dict[str, Tensors]:
    records = (each for each in envelope.records if each.HasField("arrays"))
    return {each.name: _of(each.arrays, folder) for each in records}


def _of(arrays: Arrays, folder: Path) -> Tensors:
    if not arrays.HasField("blob"):
        return unpack_tensors(arrays.packed) if arrays.packed else {}
    blob = arrays.blob
    path = blob_path(folder, blob.id)
    return TensorFile.open(path, size_max=blob.size_bytes, crc32=blob.crc32).tensors


def _counterpart(
    record: str, name: str, tensor: FlatTensor, received: Mapping[str, Tensors]
) -> FlatTensor | None:
    only = next(iter(received.values())) if len(received) == 1 else {}
    found = received.get(record, only).get(name)
    alike = found is not None and found.shape == tensor.shape and found.dtype.name in FLOATS
    return found if alike else None


def _distance_squared(tensor: FlatTensor, other: FlatTensor | None) -> float:
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is told so
        for start in range(0, math.prod(tensor.shape), BLOCK_VALUES):
            values = tensor[start : start + BLOCK_VALUES].astype(np.float64)
            if other is not None:
                values -= other[start : start + BLOCK_VALUES].astype(np.float64)
            total += float(np.dot(values, values))
    return total
