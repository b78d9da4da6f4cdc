"""Rows of a `datasets.Dataset`: read when asked for, many at once, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from meadow import datasets
from meadow.errors import DataError
from meadow.training.batches import batches_of

Image = pytest.importorskip("PIL.Image")


class FakeDataset:
    """What a `datasets.Dataset` does with rows and columns, and how often it was read."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns
        self.readings = 0

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key: str | Sequence[int]) -> Any:
        self.readings += 1
        if isinstance(key, str):
            return self._columns[key]
        return {name: [column[place] for place in key] for name, column in self._columns.items()}


@pytest.fixture
def rows() -> FakeDataset:
    return FakeDataset(
        {
            "tokens": [[1, 2], [3, 4], [5, 6]],
            "length": [2.5, 1.5, 0.5],
            "image": [Image.new("L", (3, 2), shade) for shade in (0, 51, 255)],
            "label": [1, 0, 1],
            "name": ["b", "a", "b"],
            "writer": ["x", "x", "y"],
            "holed": [1.0, None, float("nan")],
        }
    )


def test_rows_are_read_when_they_are_asked_for(rows: FakeDataset) -> None:
    """At first only the targets and groups are read; whole numbers stay whole."""
    data = datasets.hugging_face(rows, inputs="tokens", target="label", groups="writer")
    assert rows.readings == 2
    assert data.targets.tolist() == [1, 0, 1]
    assert data.groups is not None and data.groups.tolist() == ["x", "x", "y"]
    inputs, target = data[-1]
    assert (inputs.tolist(), int(target)) == ([5, 6], 1) and inputs.dtype == torch.int64


def test_several_rows_are_one_reading(rows: FakeDataset) -> None:
    """A DataLoader, and whoever asks as it does, reads a batch at once."""
    data = datasets.hugging_face(rows, inputs="tokens", target="label")
    rows.readings = 0
    loader = torch.utils.data.DataLoader(data, batch_size=3)
    ((inputs, targets),) = loader
    assert rows.readings == 1
    assert inputs.tolist() == [[1, 2], [3, 4], [5, 6]] and targets.tolist() == [1, 0, 1]


def test_columns_are_put_after_one_another(rows: FakeDataset) -> None:
    """Several columns make one vector, scaled."""
    data = datasets.hugging_face(rows, inputs=["tokens", "length"], target="length", scale=2)
    ((inputs, targets),) = batches_of(data, 8)
    assert inputs.tolist() == [[0.5, 1.0, 1.25], [1.5, 2.0, 0.75], [2.5, 3.0, 0.25]]
    assert targets.tolist() == [2.5, 1.5, 0.5] and targets.dtype == torch.float32


def test_images_become_pixels(rows: FakeDataset) -> None:
    """Decoded images, in the colour that is asked for."""
    data = datasets.hugging_face(rows, inputs="image", target="label", color="grayscale")
    inputs, _ = next(batches_of(data, 3))
    assert inputs.shape == (3, 1, 2, 3)
    assert np.allclose(inputs[:, 0, 0, 0], [0, 0.2, 1])


def test_grey_images_stay_grey(rows: FakeDataset) -> None:
    """Without a colour that is asked for, as the first image is."""
    data = datasets.hugging_face(rows, inputs="image", target="label")
    assert data[1][0].shape == (1, 2, 3)
    rows._columns["image"][1] = Image.new("RGB", (3, 2))
    with pytest.raises(DataError, match=r"row 1, column 'image': is in colours"):
        data[1]


def test_text_needs_classes(rows: FakeDataset) -> None:
    """Names become numbers by a list, as in tables."""
    data = datasets.hugging_face(rows, inputs="tokens", target="name", classes=["a", "b"])
    assert data.targets.tolist() == [1, 0, 1]
    with pytest.raises(DataError, match=r"column 'name' holds names \('a', 'b'\); give classes"):
        datasets.hugging_face(rows, inputs="tokens", target="name")


def test_other_things_are_refused(rows: FakeDataset) -> None:
    """A dictionary of splits, a stream, a list, missing columns and missing values."""

    class Splits(FakeDataset):
        column_names = {"train": ["x"], "test": ["x"]}  # type: ignore[assignment] # noqa: RUF012

    class Stream:
        column_names = ("x",)

    with pytest.raises(DataError, match=r"several splits \(train, test\); give one"):
        datasets.hugging_face(Splits({"x": [1]}), inputs="x", target="x")
    for other in (Stream(), [1, 2]):
        with pytest.raises(DataError, match=r"needs a loaded datasets\.Dataset with rows by index"):
            datasets.hugging_face(other, inputs="x", target="x")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="has no column 'pixels'; it has tokens, length"):
        datasets.hugging_face(rows, inputs="pixels", target="label")
    with pytest.raises(DataError, match="inputs names no column"):
        datasets.hugging_face(rows, inputs=[], target="label")
    data = datasets.hugging_face(rows, inputs="holed", target="label")
    with pytest.raises(DataError, match="row 1, column 'holed': has no value"):
        data[1]
    with pytest.raises(DataError, match=r"row 2, column 'holed': inputs\[0\] is nan"):
        data[2]
