"""Named columns of numbers, one value a round, in little memory; and curves made of them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["COLUMNS_MAX", "POINTS_MAX", "Columns", "Values", "drawable", "thin"]

Values = npt.NDArray[np.float64]

COLUMNS_MAX = 64
"""Columns that are kept; the names come from files."""
POINTS_MAX = 2_000
"""Points of a curve that are drawn: more than a picture has pixels."""
DRAWN_MAX = 1e100
"""Beyond it, as after a run has diverged, the arithmetic of axes overflows."""


class Columns:
    """A table that grows by a row a round; missing values are NaN."""

    def __init__(self) -> None:
        self._rounds = array("q")
        self._columns: dict[str, array[float]] = {}
        self.left_out: set[str] = set()
        """Names beyond the first `COLUMNS_MAX`; of them as many are remembered."""

    def __len__(self) -> int:
        return len(self._rounds)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in the order in which they came."""
        return tuple(self._columns)

    @property
    def rounds(self) -> Values:
        """The rounds, shape (rows,)."""
        return np.array(self._rounds, dtype=np.float64)

    def add(self, number: int, values: Mapping[str, float]) -> None:
        """Append a round's row; a round that comes again takes the place of the last row."""
        if self._rounds and self._rounds[-1] == number:
            self._rounds.pop()
            for column in self._columns.values():
                column.pop()
        for name in values:
            if name in self._columns:
                continue
            if len(self._columns) < COLUMNS_MAX:
                self._columns[name] = array("d", [math.nan]) * len(self._rounds)
            elif len(self.left_out) < COLUMNS_MAX:
                self.left_out.add(name)
        self._rounds.append(number)
        for name, column in self._columns.items():
            column.append(values.get(name, math.nan))

    def column(self, name: str) -> Values:
        """Return a column, shape (rows,); all NaN if there is none of that name."""
        if name not in self._columns:
            return np.full(len(self._rounds), math.nan)
        return np.array(self._columns[name], dtype=np.float64)

    def total(self, name: str) -> float:
        """Return the sum of a column's finite values."""
        values = self.column(name)
        return float(values[np.isfinite(values)].sum())


def drawable(values: Values) -> npt.NDArray[np.bool_]:
    """Return which values can be drawn: finite ones of a sensible size."""
    return np.abs(np.nan_to_num(values, nan=np.inf)) < DRAWN_MAX


def thin(x: Values, y: Values, *, points_max: int = POINTS_MAX) -> tuple[Values, Values]:
    """Return a curve with at most `points_max` points that looks the same.

    Shapes: x, y: (points,).
    Guarantees: the lowest and the highest point of every stretch stay, so no spike is lost; points
        that cannot be drawn are left out.
    """
    drawn = drawable(x) & drawable(y)
    x, y = x[drawn], y[drawn]
    if len(x) <= points_max:
        return x, y
    edges = np.linspace(0, len(x), max(1, points_max // 2) + 1).astype(int)
    kept: list[int] = []
    for start, end in pairwise(edges):
        low, high = start + int(y[start:end].argmin()), start + int(y[start:end].argmax())
        kept += sorted({low, high})
    return x[kept], y[kept]
