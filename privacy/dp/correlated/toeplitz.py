"""Optimal noise that depends on a fixed number of rounds: coefficients of a banded matrix.

C is lower triangular, with `bands` coefficients c_0, c_1, ... along its diagonals. Round t gets the
noise (C^-1 z)_t, for independent normals z. A model depends on sums over rounds: their error is
C's column norm times the norm of the rows of A C^-1, where A is the matrix of prefix sums. Both
are smooth in the coefficients, and are products of power series: n log n operations per step.

Source: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu, "(Amplified) banded matrix
factorization: a unified approach to private training" (2023); McKenna, "Scaling up the banded
matrix factorization mechanism for differentially private ML" (2024), section 4: Toeplitz
coefficients by L-BFGS; Nocedal, Wright, "Numerical optimization" (2006), algorithm 7.4.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ....strategies.algorithms.bounds import require_whole

__all__ = ["best_coefficients", "inverse_series"]

Reals = NDArray[np.float64]

STEPS_MAX = 100
PAIRS_KEPT = 10
DECREASE_MIN = 1e-10
"""The optimization ends when a step lowers the logarithm of the squared error by less."""
HALVINGS_MAX = 40


@lru_cache(maxsize=16)
def best_coefficients(rounds: int, bands: int) -> tuple[float, ...]:
    """Return the coefficients with the smallest mean squared error of the sums after each round.

    Guarantees: their L2 norm is 1; the first is positive. Equal arguments give equal results.
    Edge cases: 1 band gives independent noise; more bands than rounds count as `rounds` bands.
    """
    require_whole("rounds", rounds, at_least=1)
    require_whole("bands", bands, at_least=1)
    found = _minimized(_square_root(min(bands, rounds)), rounds)
    return tuple((found / np.linalg.norm(found)).tolist())


def inverse_series(series: Reals, count: int) -> Reals:
    """Return the first coefficients of the power series 1 / `series`, by Newton's iteration."""
    found, known = np.array([1 / series[0]]), 1
    while known < count:
        known = min(2 * known, count)
        rest = -_product(series[:known], found, known)
        rest[0] += 2
        found = _product(found, rest, known)
    return found


def _product(left: Reals, right: Reals, count: int) -> Reals:
    size = 1 << (2 * count - 1).bit_length()
    found = np.fft.irfft(np.fft.rfft(left, size) * np.fft.rfft(right, size), size)
    return np.asarray(found[:count], np.float64)


def _error(coefficients: Reals, rounds: int) -> tuple[float, Reals]:
    """Return the logarithm of the mean squared error, and its gradient.

    With d the series 1/c and e the sums of d, the sum after t rounds has the variance
    e_0^2 + ... + e_(t-1)^2, and a small change x of c changes e by -e * d * x.
    """
    inverse = inverse_series(coefficients, rounds)
    sums, weights = np.cumsum(inverse), np.arange(rounds, 0, -1)
    total, squared = float(weights @ sums**2), float(coefficients @ coefficients)
    slopes = _product(sums, inverse, rounds)
    backwards = _product((weights * sums)[::-1], slopes, rounds)[::-1]
    gradient = 2 * coefficients / squared - 2 * backwards[: len(coefficients)] / total
    return float(np.log(squared * total / rounds)), gradient


def _square_root(bands: int) -> Reals:
    """Return the first coefficients of (1 - x)^(-1/2), the square root of A: a good start."""
    steps = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])


def _minimized(point: Reals, rounds: int) -> Reals:
    """Return the coefficients at the minimum, by L-BFGS with step halving."""
    value, gradient = _error(point, rounds)
    pairs: list[tuple[Reals, Reals]] = []
    for _ in range(STEPS_MAX):
        direction, step = _direction(gradient, pairs), 1.0
        slope = float(gradient @ direction)
        for _ in range(HALVINGS_MAX):
            moved = point - step * direction
            lower, steeper = _error(moved, rounds)
            if lower <= value - 1e-4 * step * slope:
                break
            step /= 2
        else:
            return point
        if (moved - point) @ (steeper - gradient) > 0:
            pairs = [*pairs, (moved - point, steeper - gradient)][-PAIRS_KEPT:]
        settled = value - lower < DECREASE_MIN
        point, value, gradient = moved, lower, steeper
        if settled:
            break
    return point


def _direction(gradient: Reals, pairs: list[tuple[Reals, Reals]]) -> Reals:
    """Return the gradient times an approximation of the inverse Hessian, from steps so far."""
    found, weights = gradient.copy(), []
    for moved, changed in reversed(pairs):
        weights.append(float(moved @ found) / float(moved @ changed))
        found -= weights[-1] * changed
    if pairs:
        moved, changed = pairs[-1]
        found *= float(moved @ changed) / float(changed @ changed)
    for (moved, changed), weight in zip(pairs, reversed(weights), strict=True):
        found += (weight - float(changed @ found) / float(moved @ changed)) * moved
    return found
