"""Matrices as products of two thin matrices, other tensors unchanged; with error feedback.

Source: Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for
distributed optimization" (2019), algorithm 1, for each client separately, and with two steps of
the power iteration from a random start instead of one step from the last round's result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .numbers import Form, Row

__all__ = ["LowRank"]

STEPS = 2


class LowRank:
    """Factors each tensor of two or more dimensions as a matrix: the first by all other dimensions.

    A tensor whose factors would not be smaller is sent unchanged.
    """

    feeds_back = True

    def __init__(self, shapes: Sequence[tuple[int, ...]], *, rank: int) -> None:
        self._rank = rank
        self._matrices = [self._matrix(shape) for shape in shapes]
        self._sizes = [math.prod(shape) for shape in shapes]
        thin = sum(rank * (m + n) for m, n in filter(None, self._matrices))
        plain = sum(
            size for size, matrix in zip(self._sizes, self._matrices, strict=True) if matrix is None
        )
        self.forms: Sequence[Form] = [(np.dtype(np.float32), thin + plain)]

    def encode(self, row: Row, generator: np.random.Generator) -> list[NDArray[Any]]:
        parts, start = [np.zeros(0, np.float32)], 0
        for size, matrix in zip(self._sizes, self._matrices, strict=True):
            values = row[start : start + size]
            start += size
            if matrix is None:
                parts.append(values)
                continue
            right = generator.standard_normal((matrix[1], self._rank), np.float32)
            for _ in range(STEPS):
                left, _ = np.linalg.qr(values.reshape(matrix) @ right)
                right = values.reshape(matrix).T @ left
            parts += [left.reshape(-1), right.reshape(-1)]
        return [np.concatenate(parts)]

    def decode(self, parts: Sequence[NDArray[Any]], generator: np.random.Generator) -> Row:
        values, start = parts[0], 0
        rows: list[NDArray[Any]] = [np.zeros(0, np.float32)]
        for size, matrix in zip(self._sizes, self._matrices, strict=True):
            if matrix is None:
                rows.append(values[start : start + size])
                start += size
                continue
            middle, stop = (start + self._rank * side for side in (matrix[0], sum(matrix)))
            left = values[start:middle].reshape(matrix[0], self._rank)
            right = values[middle:stop].reshape(matrix[1], self._rank)
            with np.errstate(all="ignore"):  # the server refuses values that are not finite
                rows.append((left @ right.T).reshape(-1))
            start = stop
        return np.concatenate(rows).astype(np.float32, copy=False)

    def _matrix(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        if len(shape) < 2 or not math.prod(shape):
            return None
        matrix = shape[0], math.prod(shape[1:])
        smaller = self._rank * sum(matrix) < math.prod(matrix) and self._rank <= min(matrix)
        return matrix if smaller else None
