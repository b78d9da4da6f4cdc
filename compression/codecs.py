"""What a codec is, and all of them by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .low_rank import LowRank
from .numbers import Form, Halves, Integers, Plain, Row
from .sparse import RandomK, TopK

__all__ = ["Codec", "codec_of"]


class Codec(Protocol):
    """Makes a row of float32 values smaller, and comes near to it again.

    Guarantees: what is encoded has `forms`, whatever the row; decoding takes a generator with
        the same seed as encoding.
    """

    feeds_back: bool
    """Whether what is lost must be added to the next row."""
    forms: Sequence[Form]

    def encode(self, row: Row, generator: np.random.Generator) -> list[NDArray[Any]]: ...
    def decode(self, parts: Sequence[NDArray[Any]], generator: np.random.Generator) -> Row: ...


def codec_of(kind: str, shapes: Sequence[tuple[int, ...]], *, fraction: float, rank: int) -> Codec:
    """Return the codec of that name for a row of tensors of these shapes."""
    size = sum(math.prod(shape) for shape in shapes)
    if kind in ("fp16", "bf16"):
        return Halves(size, brain=kind == "bf16")
    if kind in ("int8", "int4"):
        return Integers(size, bits=int(kind[3:]))
    if kind == "top_k":
        return TopK(size, fraction=fraction)
    if kind == "random_k":
        return RandomK(size, fraction=fraction)
    if kind == "low_rank":
        return LowRank(shapes, rank=rank)
    return Plain(size)
