"""Decoded images as tensors of pixels."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from ..errors import DataError

__all__ = ["Color", "alike", "color_of", "pixels"]

Color = Literal["rgb", "grayscale"]
_MODES = {"rgb": "RGB", "grayscale": "L"}
_GREY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "F"})
"""Pillow's modes of images without colours."""


def color_of(image: Any) -> Color:
    """Return whether a Pillow image is "rgb" or "grayscale"."""
    return "grayscale" if image.mode in _GREY else "rgb"


def alike(image: Any, first: Color, *, where: str) -> Color:
    """Return the color of the data set's first image, which this one is converted to.

    Raises:
        DataError: the first one is grey, and this one would lose its colours.
    """
    if first == "grayscale" and color_of(image) == "rgb":
        raise DataError(
            f'{where}: is in colours, and the first image is grey; give color="rgb" or '
            'color="grayscale"'
        )
    return first


def pixels(image: Any, *, color: Color, size: tuple[int, int] | None = None) -> torch.Tensor:
    """Return a Pillow image as float32 in [0, 1].

    Shapes: (3, height, width) for "rgb", (1, height, width) for "grayscale"; `size` is (height,
        width), to which the image is stretched.
    """
    image = image.convert(_MODES[color])
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1])
    array = np.array(image, dtype=np.uint8).reshape(image.height, image.width, -1)
    return torch.from_numpy(array).permute(2, 0, 1).float().div_(255).contiguous()
