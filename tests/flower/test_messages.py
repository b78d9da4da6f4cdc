"""Arrays over existing memory or files, where Flower takes them apart or Ray moves them."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from flwr.app import Array

from meadow.flower.messages import TensorArray
from meadow.transport.tensors import TensorFile, write_tensors


@pytest.fixture(params=[np.float32, np.int64, np.bool_, ml_dtypes.bfloat16])
def values(request: pytest.FixtureRequest) -> np.ndarray:
    """A small matrix of each kind of number."""
    return np.arange(6).reshape(2, 3).astype(request.param)


@pytest.fixture
def mapped(values: np.ndarray, tmp_path: Path) -> TensorArray:
    """The matrix in a file."""
    write_tensors(tmp_path / "t.safetensors", {"w": values}, fsync=False)
    file = TensorFile.open(tmp_path / "t.safetensors", size_max=1 << 20)
    return TensorArray(file.tensors["w"])


@pytest.mark.parametrize("through", [lambda a: pickle.loads(pickle.dumps(a)), copy.deepcopy])
def test_a_mapped_array_moves_by_its_values(through, mapped, values, tmp_path: Path) -> None:
    """Ray's pickles, and copies, of an array in a file hold its values and not the file."""
    moved = through(mapped)
    (tmp_path / "t.safetensors").unlink()
    assert isinstance(moved, TensorArray)
    assert (moved.dtype, moved.shape, moved.stype) == (mapped.dtype, mapped.shape, mapped.stype)
    assert moved.numpy().tobytes() == values.tobytes()


def test_flower_takes_it_for_its_own(mapped: TensorArray, values: np.ndarray) -> None:
    """What Flower sends and hashes is that of a plain Array, and comes out as one."""
    plain = Array(mapped.dtype, mapped.shape, mapped.stype, mapped.data)
    assert mapped.deflate() == plain.deflate()
    assert mapped.object_id == plain.object_id
    inflated = Array.inflate(mapped.deflate(), mapped.children)
    assert inflated.data == mapped.data
    if values.dtype != ml_dtypes.bfloat16:  # .npy has no name for it
        np.testing.assert_array_equal(inflated.numpy(), values)
