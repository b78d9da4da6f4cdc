"""Fewer values: the largest with their indices, or random ones, whose indices follow from a seed.

The client adds the values that it left out to its next delta (error feedback). Sources:
Stich, Cordonnier, Jaggi, "Sparsified SGD with memory" (2018), algorithm 1; Karimireddy, Rebjock,
Stich, Jaggi, "Error feedback fixes SignSGD and other gradient compression schemes" (2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ProtocolError
from .numbers import Form, Row

__all__ = ["RandomK", "TopK"]


class TopK:
    """Sends the values of largest magnitude, in ascending order of their indices."""

    feeds_back = True

    def __init__(self, size: int, *, fraction: float) -> None:
        self._size, self._kept = size, math.ceil(fraction * size)
        self.forms: Sequence[Form] = [
            (np.dtype(np.uint32), self._kept),
            (np.dtype(np.float32), self._kept),
        ]

    def encode(self, row: Row, generator: np.random.Generator) -> list[NDArray[Any]]:
        places = np.argpartition(np.abs(row), self._size - self._kept)[self._size - self._kept :]
        places.sort()
        return [places.astype(np.uint32), row[places]]

    def decode(self, parts: Sequence[NDArray[Any]], generator: np.random.Generator) -> Row:
        places, values = parts
        if np.any(places >= self._size) or np.any(places[1:] <= places[:-1]):
            raise ProtocolError(
                f"the indices of a sparse update must ascend and be less than {self._size}"
            )
        row = np.zeros(self._size, np.float32)
        row[places] = values
        return row


class RandomK:
    """Sends the values at random indices, which both sides draw from the same seed."""

    feeds_back = True

    def __init__(self, size: int, *, fraction: float) -> None:
        self._size, self._kept = size, math.ceil(fraction * size)
        self.forms: Sequence[Form] = [(np.dtype(np.float32), self._kept)]

    def encode(self, row: Row, generator: np.random.Generator) -> list[NDArray[Any]]:
        return [row[self._places(generator)]]

    def decode(self, parts: Sequence[NDArray[Any]], generator: np.random.Generator) -> Row:
        row = np.zeros(self._size, np.float32)
        row[self._places(generator)] = parts[0]
        return row

    def _places(self, generator: np.random.Generator) -> NDArray[np.int64]:
        return generator.choice(self._size, self._kept, replace=False, shuffle=False)
