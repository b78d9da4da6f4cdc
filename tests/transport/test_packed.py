"""Small records of arrays are bytes in their message, and the same bytes as in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from meadow.flower.messages import params_to_arrays
from meadow.transport.layout import FileLayout
from meadow.transport.packed import PACKED_BYTES_MAX, pack_tensors, unpack_tensors
from meadow.transport.tensors import write_tensors
from meadow.transport.writer import BlobWriter


def blobs_in(folder: Path) -> int:
    """Count the files."""
    return len(list(folder.glob("*.safetensors")))


def test_small_records_travel_inside(tmp_path: Path) -> None:
    """A record of at most the bound needs no file, and one that is larger does."""
    blobs = BlobWriter(tmp_path, fsync=False)
    (header,) = list(FileLayout({"w": np.zeros(0, np.uint8)}).blocks())
    values = np.zeros(PACKED_BYTES_MAX - 8 - len(header), np.uint8)
    arrays = blobs.put(params_to_arrays({"w": values}))
    assert not arrays.HasField("blob") and blobs_in(tmp_path) == 0
    assert PACKED_BYTES_MAX - 16 < len(arrays.packed) <= PACKED_BYTES_MAX
    larger = blobs.put(params_to_arrays({"w": np.zeros(PACKED_BYTES_MAX, np.uint8)}))
    assert larger.HasField("blob") and blobs_in(tmp_path) == 1


def test_a_record_that_was_packed_for_few_is_a_blob_for_many(tmp_path: Path) -> None:
    """The bound is that of now, also for a record that the writer remembers."""
    blobs = BlobWriter(tmp_path, fsync=False)
    record = params_to_arrays({"w": np.ones(100)})
    assert blobs.put(record).packed
    blobs.packed_bytes_max = 500
    as_blob = blobs.put(record)
    assert as_blob.HasField("blob") and blobs_in(tmp_path) == 1
    assert blobs.put(record) == as_blob and blobs_in(tmp_path) == 1


def test_packed_bytes_are_the_files(tmp_path: Path) -> None:
    """The same tensors are the same bytes inside a message and in a file."""
    tensors = {"b": np.ones(3, bool), "x": np.arange(4.0), "none": np.zeros((0, 2), np.float32)}
    write_tensors(tmp_path / "file", tensors, fsync=False)
    packed = pack_tensors(FileLayout(tensors))
    assert packed == (tmp_path / "file").read_bytes()
    for name, tensor in unpack_tensors(packed).items():
        assert np.array_equal(tensor.numpy(), tensors[name])
        assert tensor.numpy().dtype == tensors[name].dtype
        assert tensor.numpy().flags.aligned and not tensor.numpy().flags.writeable
