"""`images`: a folder with one folder of images a class, decoded on access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from ..errors import DataError
from .extras import needed
from .pixels import Color, alike, color_of, pixels

__all__ = ["ImageFolder", "images"]

FORMATS = {
    ".bmp": "BMP",
    ".gif": "GIF",
    ".jpeg": "JPEG",
    ".jpg": "JPEG",
    ".pgm": "PPM",
    ".png": "PNG",
    ".ppm": "PPM",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
}
"""Only these are looked for and decoded: fewer decoders, less that a file can attack."""

PIXELS_MAX = 1 << 28


class ImageFolder(Dataset[tuple[torch.Tensor, int]]):
    """Images by index, each read and decoded on access: (pixels, class number).

    Shapes: pixels are float32 in [0, 1], (3, height, width) or (1, height, width).

    Attributes:
        files: the images' paths, sorted by class and name.
        targets: their class numbers, (samples,), for `Site.share_of(data.targets)`.
        classes: the classes' names, by number.
    """

    def __init__(
        self,
        files: Sequence[Path],
        targets: torch.Tensor,
        classes: Sequence[str],
        *,
        size: tuple[int, int] | None,
        color: Color | None,
    ) -> None:
        self.files, self.targets, self.classes = tuple(files), targets, tuple(classes)
        self._size = size
        self._color = color

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._decoded(self.files[index]), int(self.targets[index])

    @cached_property
    def _first_color(self) -> Color:
        with _opened(self.files[0]) as image:
            return color_of(image)

    def _decoded(self, file: Path) -> torch.Tensor:
        first = None if self._color else self._first_color
        with _opened(file) as image:
            color = self._color or alike(image, first or "rgb", where=str(file))
            return pixels(image, color=color, size=self._size)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open an image; what cannot be decoded, now or inside, is a DataError with the file's name."""
    pillow = needed("PIL.Image", what=str(file))
    try:
        with pillow.open(file, formats=sorted(set(FORMATS.values()))) as image:
            if image.width * image.height > PIXELS_MAX:
                raise DataError(f"{file}: has over {PIXELS_MAX} pixels; make it smaller")
            yield image
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise DataError(f"{file}: cannot be decoded: {error}; repair or remove the file") from None


def images(
    folder: Path | str,
    *,
    size: tuple[int, int] | None = None,
    color: Color | None = None,
    classes: Sequence[str] | None = None,
) -> ImageFolder:
    """Return the images of FOLDER/CLASS/*.png, *.jpg, ... as a torch Dataset.

    Images are of this `color`, "rgb" or "grayscale", by default the first image's, so that
    grey images have one channel. They are stretched to `size`, (height, width); without it all must be of one size to make
    batches. `classes` are the folders' names in the order of their numbers, by default sorted;
    give them where a site may lack a class. Hidden files and those of other kinds are left out.

    Raises:
        DataError: there is no such folder, no class, or a class without images.
    """
    root = Path(folder)
    if color not in (None, "rgb", "grayscale"):
        raise DataError(f'color must be "rgb" or "grayscale", got {color!r}')
    if size is not None and min(size) < 1:
        raise DataError(f"size must be (height, width), both >= 1, got {size}")
    try:
        there = sorted(each.name for each in root.iterdir() if each.is_dir())
    except OSError as error:
        raise DataError(f"{root}: cannot be read: {error.strerror}") from None
    there = [name for name in there if not name.startswith(".")]
    if not there:
        raise DataError(f"{root}: has no folders; it needs one folder of images a class")
    named = list(classes) if classes is not None else there
    if unknown := [name for name in there if name not in named]:
        raise DataError(f"{root / unknown[0]}: is not among classes ({', '.join(named[:8])})")
    files: list[Path] = []
    targets: list[int] = []
    for number, name in enumerate(named):
        found = _images_in(root / name) if name in there else []
        if not found and classes is None:
            raise DataError(
                f"{root / name}: has no images ({', '.join(sorted(FORMATS))}); remove the folder, "
                "or name the classes with classes=[...]"
            )
        files += found
        targets += [number] * len(found)
    return ImageFolder(files, torch.tensor(targets), named, size=size, color=color)


def _images_in(folder: Path) -> list[Path]:
    return sorted(
        each
        for each in folder.iterdir()
        if each.suffix.lower() in FORMATS and not each.name.startswith(".") and each.is_file()
    )
