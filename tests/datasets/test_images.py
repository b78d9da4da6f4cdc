"""Folders of images: decoded when asked for, numbered the same everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from meadow import datasets
from meadow.errors import DataError
from meadow.training.batches import batches_of

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two cats of one grey each, a dog in red, and files that are no images."""
    for name, color in {
        "cat/b.png": (51,) * 3,
        "cat/a.PNG": (0,) * 3,
        "dog/c.bmp": (255, 0, 0),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 2), color).save(path)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / ".hidden.png").write_text("no image")
    (tmp_path / ".git").mkdir()
    return tmp_path


def test_images_come_by_class_and_name(folder: Path) -> None:
    """Pixels in [0, 1], channels first, classes numbered in the order of their names."""
    data = datasets.images(folder)
    assert len(data) == 3 and data.classes == ("cat", "dog")
    assert [file.name for file in data.files] == ["a.PNG", "b.png", "c.bmp"]
    assert data.targets.tolist() == [0, 0, 1]
    pixels, target = data[2]
    assert pixels.shape == (3, 2, 4) and pixels.dtype == torch.float32 and target == 1
    assert pixels[:, 0, 0].tolist() == [1.0, 0.0, 0.0]
    assert torch.allclose(data[1][0], torch.tensor(0.2))


def test_images_are_stretched_and_grey(folder: Path) -> None:
    """The size is (height, width); red is 0.299 of white in ITU-R 601 luma."""
    data = datasets.images(folder, size=(6, 5), color="grayscale")
    inputs, targets = next(batches_of(data, 3))
    assert inputs.shape == (3, 1, 6, 5) and targets.tolist() == [0, 0, 1]
    assert abs(float(inputs[2].mean()) - 0.299) < 0.01


@pytest.mark.parametrize("mode", ["L", "1", "LA"])
def test_grey_images_stay_grey(tmp_path: Path, mode: str) -> None:
    """They have one channel unless another colour is asked for; colours are not lost by that."""
    (tmp_path / "a").mkdir()
    for name in ("0.png", "1.png"):
        Image.new(mode, (4, 2)).save(tmp_path / "a" / name)
    data = datasets.images(tmp_path)
    assert [data[place][0].shape for place in (1, 0)] == [(1, 2, 4)] * 2
    assert datasets.images(tmp_path, color="rgb")[0][0].shape == (3, 2, 4)
    Image.new("RGB", (4, 2)).save(tmp_path / "a" / "1.png")
    with pytest.raises(DataError, match=r'1\.png: is in colours, .* give color="rgb"'):
        datasets.images(tmp_path)[1]
    Image.new("RGB", (4, 2)).save(tmp_path / "a" / "0.png")
    Image.new(mode, (4, 2)).save(tmp_path / "a" / "1.png")
    assert datasets.images(tmp_path)[1][0].shape == (3, 2, 4)


def test_named_classes_keep_their_numbers(folder: Path) -> None:
    """A site without a class numbers the others as everybody does."""
    data = datasets.images(folder, classes=["bird", "dog", "cat"])
    assert data.targets.tolist() == [1, 2, 2]
    with pytest.raises(DataError, match=r"dog: is not among classes \(cat\)"):
        datasets.images(folder, classes=["cat"])


def test_folders_without_images_are_refused(tmp_path: Path, folder: Path) -> None:
    """No folder, no class, an empty class, or options that mean nothing."""
    with pytest.raises(DataError, match="nowhere: cannot be read: No such file"):
        datasets.images(tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no folders; it needs one folder of images a class"):
        datasets.images(folder / "dog")
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match="empty: has no images"):
        datasets.images(folder)
    with pytest.raises(DataError, match="color must be"):
        datasets.images(folder, color="cmyk")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"size must be \(height, width\)"):
        datasets.images(folder, size=(0, 5))


def test_a_damaged_image_is_named(folder: Path) -> None:
    """Cut off, of another kind than its name says, or of too many pixels: named when decoded."""
    whole = (folder / "cat" / "b.png").read_bytes()
    (folder / "cat" / "b.png").write_bytes(whole[:50])
    (folder / "cat" / "a.PNG").write_text("%!PS-Adobe-3.0 EPSF-3.0")
    data = datasets.images(folder)
    for index in (0, 1):
        with pytest.raises(DataError, match=r"\.(png|PNG): cannot be decoded"):
            data[index]


def test_huge_images_are_not_decoded(folder: Path) -> None:
    """A small file that claims a billion pixels costs no memory."""
    header = b"P5 40000 40000 255\n" + np.zeros(10, dtype=np.uint8).tobytes()
    (folder / "dog" / "c.pgm").write_bytes(header)
    with pytest.raises(DataError, match=r"c\.pgm: (has over|cannot be decoded)"):
        datasets.images(folder)[3]
