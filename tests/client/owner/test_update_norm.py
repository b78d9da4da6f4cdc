"""The norm of an update in the owner's log, against NumPy."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from meadow.client.owner import update_norm as module
from meadow.client.owner.update_norm import update_norm
from meadow.errors import MeadowError
from meadow.transport import fleet_pb2 as pb
from meadow.transport.blobs import blob_path
from meadow.transport.layout import FileLayout
from meadow.transport.packed import pack_tensors
from meadow.transport.tensors import write_tensors

Params = dict[str, NDArray[np.generic]]


def envelope(folder: Path, **records: Params) -> pb.Envelope:
    """Return a message of these records, the even ones of which are files."""
    made = pb.Envelope(records=[pb.Record(name="config", configs=pb.Entries())])
    for number, (name, params) in enumerate(records.items()):
        arrays = pb.Arrays(packed=pack_tensors(FileLayout(params)))
        if number % 2 == 0:
            folder.mkdir(exist_ok=True)
            info = write_tensors(blob_path(folder, f"b-{number}"), params, fsync=False)
            blob = pb.Blob(id=f"b-{number}", size_bytes=info.size_bytes, crc32=info.crc32)
            arrays = pb.Arrays(blob=blob)
        made.records.append(pb.Record(name=name, arrays=arrays))
    return made


def norm(tmp_path: Path, before: dict[str, Params], after: dict[str, Params]) -> float | None:
    """Return the norm of an answer to an instruction."""
    asked, said = tmp_path / "asked", tmp_path / "said"
    return update_norm(
        envelope(said, **after), envelope(asked, **before), reply_dir=said, blob_dir=asked
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_it_is_that_of_the_difference(
    tmp_path: Path, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all floating-point tensors of the same name, block by block, in files and in messages."""
    monkeypatch.setattr(module, "BLOCK_VALUES", 7)
    random = np.random.default_rng(3)
    before = {name: random.normal(size=(5, 4)).astype(dtype) for name in "ab"}
    after = {name: random.normal(size=(5, 4)).astype(dtype) for name in "ba"}
    squares = sum(np.sum((after[n].astype(float) - before[n].astype(float)) ** 2) for n in "ab")
    counts = {"steps": np.array([3])}
    for first, second in (("arrays", "arrays"), ("arrays", "trained")):
        found = norm(tmp_path, {first: before | counts}, {second: after | counts})
        assert found == pytest.approx(math.sqrt(squares), rel=1e-12)
    two = {"x": {"a": before["a"]}, "arrays": {"a": before["b"]}}
    found = norm(tmp_path, two, {"arrays": {"a": after["a"]}})
    whole = np.linalg.norm(after["a"].astype(float) - before["b"].astype(float))
    assert found == pytest.approx(whole)


def test_tensors_without_a_counterpart(tmp_path: Path) -> None:
    """They count whole; one of another shape has none."""
    before = {"a": np.ones(4, np.float32), "gone": np.ones(9, np.float32)}
    after = {"a": np.ones(9, np.float32), "b": np.full(4, 2.0, np.float32)}
    assert norm(tmp_path, {"arrays": before}, {"arrays": after}) == pytest.approx(5.0)
    assert norm(tmp_path, {}, {"arrays": after}) == pytest.approx(5.0)


@pytest.mark.parametrize(
    "params",
    [{}, {"0": np.zeros(9, np.uint8)}, {"0": np.array([math.nan])}, {"0": np.array([1e200])},
     {"0": np.array([math.inf, 1.0])}],
)  # fmt: skip
def test_answers_without_one(tmp_path: Path, params: Params) -> None:
    """Masked and compressed ones are bytes; what is not finite has no length either."""
    assert norm(tmp_path, {"arrays": {"0": np.zeros(2)}}, {"arrays": params}) is None
    assert update_norm(pb.Envelope(), pb.Envelope(), reply_dir=tmp_path, blob_dir=tmp_path) is None


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    """It is an error that names it: nothing is sent that was not looked at."""
    said = envelope(tmp_path, arrays={"0": np.zeros(2)})
    blob_path(tmp_path, "b-0").unlink()
    with pytest.raises(MeadowError, match="b-0"):
        update_norm(said, pb.Envelope(), reply_dir=tmp_path, blob_dir=tmp_path)
