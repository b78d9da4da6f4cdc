"""Writes records of arrays as blobs, each one once; small ones go into their messages."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flwr.app import Array, ArrayRecord

from ..flower.messages import NUMPY_STYPE, FlatTensor, tensor_of
from .blobs import blob_path, new_blob_id
from .durable import make_folder, sync_folder
from .file_pool import FilePool
from .fleet_pb2 import ArrayInfo, Arrays, Blob
from .header import check_name
from .layout import FileLayout
from .packed import PACKED_BYTES_MAX, pack_tensors
from .tensors import FileInfo, holds, whole_file, write_layout

__all__ = ["BlobWriter"]

REMEMBERED_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class _Written:
    held: tuple[weakref.ref[Array], ...]
    arrays: Arrays


class BlobWriter:
    """A folder that takes records of arrays, each as one blob; made when it is needed.

    A record of at most `packed_bytes_max` bytes becomes no blob: it travels in its message.

    It remembers the last records that it wrote, by identity and without keeping them alive, so
    that a round's thousand messages with the same params cost one file. Arrays must not change
    in place meanwhile: use one writer per round, or call `forget` between rounds.
    """

    def __init__(
        self, folder: Path, *, fsync: bool = True, file_pool: FilePool | None = None
    ) -> None:
        self._folder = folder
        self._file_pool = file_pool
        self._fsync = fsync
        self.packed_bytes_max = PACKED_BYTES_MAX
        self._written: OrderedDict[tuple[tuple[str, int], ...], _Written] = OrderedDict()

    def put(self, record: ArrayRecord) -> Arrays:
        """Return `record` as it is sent; if it needs a blob, that is in the folder on return.

        A record that is exactly one file of tensors is linked, not copied, where the disk can.

        Raises:
            ProtocolError: an array claims to be NumPy's and is not.
            StoreError: the blob cannot be written.
        """
        key = tuple((name, id(array)) for name, array in record.items())
        known = self._written.get(key)
        fits = known is not None and len(known.arrays.packed) <= self.packed_bytes_max
        if known and fits and all(ref() is not None for ref in known.held):
            self._written.move_to_end(key)
            return known.arrays
        arrays = self._put(record)
        held = tuple(weakref.ref(array) for array in record.values())
        self._written[key] = _Written(held, arrays)
        if len(self._written) > REMEMBERED_MAX:
            self._written.popitem(last=False)
        return arrays

    def forget(self) -> None:
        """Forget all written records: each is written again."""
        self._written.clear()

    def _put(self, record: ArrayRecord) -> Arrays:
        parts = {name: _part(name, array) for name, array in record.items()}
        tensors = {name: tensor for name, (tensor, _) in parts.items()}
        infos = [info for _, info in parts.values()]
        layout = FileLayout(tensors)
        if layout.size_bytes <= self.packed_bytes_max:
            return Arrays(packed=pack_tensors(layout), infos=infos)
        blob_id = new_blob_id()
        path = blob_path(self._folder, blob_id)
        if self._fsync:
            make_folder(self._folder)
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
        info = self._link(tensors, path) or write_layout(
            path, layout, fsync=self._fsync, file_pool=self._file_pool
        )
        blob = Blob(id=blob_id, size_bytes=info.size_bytes, crc32=info.crc32)
        return Arrays(blob=blob, infos=infos)

    def _link(self, tensors: Mapping[str, FlatTensor | bytes], path: Path) -> FileInfo | None:
        file = whole_file(tensors)
        if file is None or not file.link(path):
            return None
        if self._fsync:
            sync_folder(self._folder)
        return file.info


def _part(name: str, array: Array) -> tuple[FlatTensor | bytes, ArrayInfo]:
    """Return what an array is in the file, and how the wire describes it."""
    check_name(name)
    if array.stype != NUMPY_STYPE:
        dtype, stype = check_name(array.dtype, "type"), check_name(array.stype, "type")
        return array.data, ArrayInfo(name=name, dtype=dtype, shape=array.shape, stype=stype)
    tensor = tensor_of(name, array)
    held = holds(tensor.dtype)
    dtype = tensor.dtype.name if held else str(tensor.dtype)
    info = ArrayInfo(name=name, dtype=dtype, shape=tensor.shape, stype=NUMPY_STYPE)
    return (tensor if held else array.data), info
