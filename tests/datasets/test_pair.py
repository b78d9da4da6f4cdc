"""Arrays and archives: checked, converted once, and not copied for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from meadow import datasets
from meadow.errors import DataError
from meadow.training.batches import batches_of, samples_in

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2], dtype=np.int32)


def test_a_pair_is_what_a_task_takes() -> None:
    """It unpacks, batches and counts as a pair of tensors."""
    pair = datasets.arrays(X, Y, groups=list("aabbcc"), classes=["p", "q", "r"])
    inputs, targets = pair
    assert samples_in(pair) == 6 and pair.classes == ("p", "q", "r")
    assert torch.equal(torch.cat([y for _, y in batches_of(pair, 4)]), targets)
    assert inputs is pair.inputs and targets is pair.targets
    assert pair.groups is not None and not pair.groups.flags.writeable


@pytest.mark.parametrize(
    ("given", "expected"),
    [("f8", "float32"), ("f4", "float32"), ("f2", "float16"), (">f4", "float32"),
     ("u1", "uint8"), ("u2", "int64"), ("i8", "int64"), ("?", "float32")],
)  # fmt: skip
def test_inputs_become_what_models_take(given: str, expected: str) -> None:
    """64-bit floats become 32-bit ones; bytes and token numbers stay whole."""
    inputs = datasets.arrays((X % 2).astype(given), Y).inputs
    assert str(inputs.dtype) == f"torch.{expected}"
    assert inputs.tolist() == (X % 2).tolist()


def test_targets_are_whole_or_float32() -> None:
    """Class numbers are int64, regression targets float32."""
    assert datasets.arrays(X, Y).targets.dtype == torch.int64
    assert datasets.arrays(X, Y > 1).targets.dtype == torch.int64
    assert datasets.arrays(X, X[:, 0]).targets.dtype == torch.float32


def test_memory_is_shared_where_nothing_changes() -> None:
    """A large array in the right type is not copied; one that is read-only is."""
    array = X.astype(np.float32)
    assert datasets.arrays(array, Y).inputs.data_ptr() == array.ctypes.data
    array.flags.writeable = False
    inputs = datasets.arrays(array, Y).inputs
    inputs[0] = 9
    assert array[0, 0] == 0


def test_inputs_are_scaled() -> None:
    """Bytes of images become numbers in [0, 1]."""
    inputs = datasets.arrays(np.array([[0, 255]], dtype=np.uint8), [1], scale=255).inputs
    assert inputs.dtype == torch.float32 and inputs.tolist() == [[0.0, 1.0]]


def test_large_finite_numbers_are_not_refused() -> None:
    """A sum that overflows is not a value that is not finite."""
    assert len(datasets.arrays(np.full((4, 2), 3e38), np.zeros(4)).inputs) == 4


HOLED = X.copy()
HOLED[3, 1] = np.nan
USELESS: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "nan": (HOLED, Y, {}, r"data: inputs\[3, 1\] is nan, and 1 values are not finite"),
    "inf": (X, np.array([0, 1, 2, 3, 4, np.inf]), {}, r"targets\[5\] is inf"),
    "uneven": (X, Y[:4], {}, "there are 6 inputs but 4 targets; give one target a sample"),
    "empty": (X[:0], Y[:0], {}, "there are no samples"),
    "text": (X, list("abcabc"), {}, "targets must be numbers, got <U1; encode them"),
    "ragged": ([[1], [1, 2]], [0, 1], {}, "entries of different shapes; pad or cut them"),
    "objects": (np.array([None] * 6), Y, {}, "inputs must be numbers, got object"),
    "scalar": (1.0, 2.0, {}, "one entry a sample, got a single number"),
    "groups": (X, Y, {"groups": [1, 2]}, r"groups must be one a sample, shape \(6,\), got \(2,\)"),
    "scale": (X, Y, {"scale": 0}, "scale must be > 0, got 0"),
}


@pytest.mark.parametrize("kind", USELESS)
def test_useless_arrays_are_refused(kind: str) -> None:
    """What is wrong, where, and the remedy."""
    inputs, targets, options, sentence = USELESS[kind]
    with pytest.raises(DataError, match=sentence):
        datasets.arrays(inputs, targets, **options)


def test_npz_gives_named_arrays(tmp_path: Path) -> None:
    """Arrays by name, with groups and scale."""
    np.savez(tmp_path / "a.npz", x=X, y=Y, pixels=X.astype(np.uint8), who=np.array(list("aabbcc")))
    plain = datasets.npz(tmp_path / "a.npz")
    assert plain.inputs.tolist() == X.tolist() and plain.targets.tolist() == Y.tolist()
    other = datasets.npz(tmp_path / "a.npz", inputs="pixels", groups="who", scale=11)
    assert other.inputs.max() == 1
    assert other.groups is not None and other.groups.tolist() == list("aabbcc")


def test_npz_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    """A missing file or array, garbage, a single array, and objects, which would be unpickled."""
    np.savez(tmp_path / "a.npz", x=X)
    np.save(tmp_path / "single.npy", X)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object), y=Y)
    (tmp_path / "garbage.npz").write_bytes(b"PK\x03\x04 nothing")
    (tmp_path / "text.npz").write_text("x,y")
    for name, sentence in [
        ("a.npz", "a.npz: has no array 'y'; it has x"),
        ("single.npy", "is a single array"),
        ("objects.npz", "cannot be read as .npz without pickle: Object arrays"),
        ("garbage.npz", "cannot be read as .npz"),
        ("text.npz", "cannot be read as .npz"),
        ("missing.npz", "missing.npz: cannot be read: No such file"),
    ]:
        with pytest.raises(DataError, match=sentence):
            datasets.npz(tmp_path / name)
