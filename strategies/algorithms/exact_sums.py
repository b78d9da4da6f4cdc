"""Weighted sums without rounding errors, so that neither order nor grouping can change them.

A float64 sum of float32 values is nearly always exact in all bits that a float32 mean shows, but
not always: two orders of the same updates can round to neighbours. Where sums must not depend on
who added what, values are cut into slices on a common grid, so coarse that a product of matrices
makes no rounding error (Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix
multiplication by using fast routines of matrix multiplication and its applications", 2012,
section 2): one, and a second one of the columns that have more. What two slices leave is added up by
`math.fsum`, which is exact (Shewchuk 1997).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...flower.messages import FlatTensor

__all__ = [
    "ExactSums",
    "Quotient",
    "SparseTensor",
    "add_exactly",
    "exact_parts",
    "exact_sums",
    "two_sum",
]

Reals = NDArray[np.float64]

SIGNIFICANT_BITS = 53
WEIGHT_BITS = 40
"""Whole weights that add up to less leave enough bits for a slice."""
SPLITTER = float((1 << 27) + 1)
WIDTH = 4096
"""Columns at once: those of 20 updates stay in the cache."""
EXPONENT_MIN = -1074
"""Of the smallest float64: nothing is finer."""
PRODUCT_MIN = 1e-250
"""The rounding error of a smaller product may be no float64."""


@dataclass(frozen=True, slots=True)
class ExactSums:
    """The exact sums of columns: each as a float64, and of some what that lacks.

    `rounded` is float64 (k,): the sums, each rounded once, half to even. `positions` are the
    columns that have more, ascending, one repeatedly if need be, and `rests` what they have.
    """

    rounded: Reals
    positions: NDArray[np.int64]
    rests: Reals

    def rows(self) -> Iterator[Reals]:
        """Yield rows of all columns that add up to the exact sums."""
        yield self.rounded
        positions, rests = self.positions, self.rests
        while positions.size:
            row = np.zeros(len(self.rounded))
            first = np.append(True, positions[1:] != positions[:-1])
            row[positions[first]] = rests[first]
            yield row
            positions, rests = positions[~first], rests[~first]


@dataclass(frozen=True, slots=True)
class SparseTensor:
    """A float64 `FlatTensor` with few values: `values` at `positions`, ascending, each there once."""

    shape: tuple[int, ...]
    positions: NDArray[np.int64]
    values: Reals

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return self.values.dtype

    def __getitem__(self, values: slice) -> Reals:
        found = np.zeros(values.stop - values.start)
        first, last = np.searchsorted(self.positions, (values.start, values.stop))
        found[self.positions[first:last] - values.start] = self.values[first:last]
        return found

    def numpy(self) -> Reals:
        return self[0 : math.prod(self.shape)].reshape(self.shape)


class Quotient:
    """A `FlatTensor`: a sum divided by a number, in float64 (complex128)."""

    def __init__(self, summed: FlatTensor, divisor: float) -> None:
        self._summed, self._divisor = summed, divisor
        self.dtype: np.dtype[Any] = np.dtype(
            np.complex128 if summed.dtype.kind == "c" else np.float64
        )
        self.shape = summed.shape

    def __getitem__(self, values: slice) -> NDArray[Any]:
        sums: NDArray[Any] = self._summed[values]
        return sums / self._divisor

    def numpy(self) -> NDArray[Any]:
        sums: NDArray[Any] = self._summed.numpy()
        return sums / self._divisor


def add_exactly(parts: list[Reals], row: Reals) -> None:
    """Add a row to parts, which are rows as well; they become more where rounding asks for it."""
    for place, part in enumerate(parts):
        parts[place], row = two_sum(part, row)
        if not row.any():
            return
    parts.append(row)


def exact_parts(values: Iterable[float]) -> list[float]:
    """Return a few numbers whose exact sum is that of these; the first is the rounded sum."""
    left, parts = list(values), list[float]()
    while (rest := math.fsum(left)) and math.isfinite(rest):
        parts.append(rest)
        left.append(-rest)
    return parts or [0.0]


def exact_sums(weights: Reals, values: Reals) -> ExactSums:
    """Return the exact weighted sums of columns.

    Shapes: weights (n,), values (n, k); float64, finite, products at most 1e300.
    """
    starts = range(0, values.shape[1], WIDTH)
    parts = [_exact_sums(weights, values[:, start : start + WIDTH]) for start in starts]
    if len(parts) == 1:
        return parts[0]
    return ExactSums(
        np.concatenate([part.rounded for part in parts] or [np.zeros(0)]),
        np.concatenate(
            [start + part.positions for start, part in zip(starts, parts, strict=True)]
            or [np.zeros(0, np.int64)]
        ),
        np.concatenate([part.rests for part in parts] or [np.zeros(0)]),
    )


def _exact_sums(weights: Reals, values: Reals) -> ExactSums:
    total = float(np.abs(weights).sum())
    whole = total < 2.0**WEIGHT_BITS and bool((np.rint(weights) == weights).all())
    positions, found = np.zeros(0, np.int64), np.zeros(0)
    if not whole:
        rounded, odd = np.zeros(values.shape[1]), np.arange(values.shape[1])
    else:
        bits = SIGNIFICANT_BITS - math.frexp(total)[1]
        rounded, left, columns = _slice(weights, values, bits=bits)
        odd = columns
        if columns.size:  # few: those with a value beside one that is a million times larger
            second, _, odd = _slice(weights, left[:, columns], bits=bits)
            rounded[columns], found = two_sum(rounded[columns], second)
            found[odd] = 0.0
            positions, odd = columns, columns[odd]
            positions, found = positions[found != 0.0], found[found != 0.0]
    if odd.size:
        added, more = list[int](), list[float]()
        for column, (first, *others) in zip(
            odd.tolist(), map(exact_parts, _terms(weights, values[:, odd])), strict=True
        ):
            rounded[column] = first
            added += [column] * len(others)
            more += others
        positions = np.concatenate([positions, np.array(added, np.int64)])
        found = np.concatenate([found, more])
        order = np.argsort(positions, kind="stable")
        positions, found = positions[order], found[order]
    return ExactSums(rounded + 0.0, positions, found)  # minus zero becomes zero


def _slice(weights: Reals, values: Reals, *, bits: int) -> tuple[Reals, Reals, NDArray[np.int64]]:
    """Return the exact sums of a slice of `bits` bits, what it leaves of the values, and the columns of
    which it leaves something.

    The slice's values are multiples of its grid, and their sum is smaller than 2**53 of it.
    """
    largest = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    grid = math.frexp(largest)[1] - bits
    nothing = np.zeros(0, np.int64)
    if largest == 0.0 or grid <= EXPONENT_MIN:  # all of it is in this slice
        return weights @ values, values, nothing
    shift = math.ldexp(1.5, grid + SIGNIFICANT_BITS - 1)
    slice_ = values + shift
    slice_ -= shift
    sums = weights @ slice_
    if np.array_equal(slice_, values):
        return sums, values, nothing
    np.subtract(values, slice_, out=slice_)
    return sums, slice_, np.flatnonzero(slice_.any(axis=0))


def two_sum(first: Reals, second: Reals) -> tuple[Reals, Reals]:
    """Return the rounded sum and its error (Knuth, TAOCP 2, theorem 4.2.2 B)."""
    rounded = first + second
    shown = rounded - first
    return rounded, (first - (rounded - shown)) + (second - shown)


def _terms(weights: Reals, values: Reals) -> Iterator[list[float]]:
    """Yield, by column, numbers with exactly the sum of the weighted values."""
    products = weights[:, None] * values
    errors = _errors(weights[:, None], values, products)
    smallest = np.abs(products, where=products != 0.0, out=np.full(products.shape, np.inf))
    lost = ((products == 0.0) & (values != 0.0) & (weights[:, None] != 0.0)).any(axis=0)
    tiny = lost | (smallest.min(axis=0, initial=np.inf) < PRODUCT_MIN)
    for column, (high, low) in enumerate(zip(products.T.tolist(), errors.T.tolist(), strict=True)):
        if tiny[column]:
            yield _fraction_parts(weights.tolist(), values[:, column].tolist())
        else:
            yield [*high, *low]


def _errors(weights: Reals, values: Reals, products: Reals) -> Reals:
    """Return what products lost to rounding (Dekker 1971: each factor is cut into halves)."""
    weight_high, value_high = _upper(weights), _upper(values)
    weight_low, value_low = weights - weight_high, values - value_high
    rest = (
        (weight_high * value_high - products) + weight_high * value_low
    ) + weight_low * value_high
    return rest + weight_low * value_low


def _upper(values: Reals) -> Reals:
    shifted = SPLITTER * values
    return shifted - (shifted - values)


def _fraction_parts(weights: list[float], values: list[float]) -> list[float]:
    """Return the exact sum in parts, where products are too small for floating point.

    What is finer than the smallest float64 is rounded once.
    """
    pairs = zip(weights, values, strict=True)
    rest = sum((Fraction(weight) * Fraction(value) for weight, value in pairs), Fraction())
    parts: list[float] = []
    while part := float(rest):
        parts.append(part)
        rest -= Fraction(part)
    return parts
