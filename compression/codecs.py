"""The interface of codecs, and their lookup by name."""

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
    """Encodes a row of float32 values in fewer bytes; decoding approximates the row.

    Guarantees: the encoded parts have the dtypes and counts of `forms` for every row. Decoding
        needs a generator with the seed of the encoding.
    """

    feeds_back: bool
    """Whether the encoding error must be added to the client's next row (error feedback)."""
    forms: Sequence[Form]

    def encode(self, row: Row, generator: np.random.Generator) -> list[NDArray[Any]]: ...
    def decode(self, parts: Sequence[NDArray[Any]], generator: np.random.Generator) -> Row: ...


def codec_of(kind: str, shapes: Sequence[tuple[int, ...]], *, fraction: float, rank: int) -> Codec:
    """Return the codec named `kind` for the row of tensors of these shapes."""
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
