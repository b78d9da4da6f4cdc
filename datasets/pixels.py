"""Decoded images as tensors of pixels."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

__all__ = ["Color", "pixels"]

Color = Literal["rgb", "grayscale"]
_MODES = {"rgb": "RGB", "grayscale": "L"}


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
