"""Noise of real numbers on a grid: its distribution to the last bit, also where bits are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from meadow.privacy.dp.mechanisms import rounded as module
from meadow.privacy.dp.mechanisms.inversion import first_bits
from meadow.privacy.dp.mechanisms.rounded import (
    BITS,
    Kind,
    _is_accepted,
    _proposed,
    _Whole,
    rounded_noise,
)

LAWS = {"gaussian": stats.norm, "laplace": stats.laplace}
KINDS: tuple[Kind, ...] = ("gaussian", "laplace")


def random_words(seed: int) -> Callable[[int], NDArray[np.uint64]]:
    """Return a source of words from a seed."""
    random = np.random.default_rng(seed)
    return lambda count: random.integers(0, 1 << 64, count, np.uint64)


def scripted(words: Sequence[int]) -> Callable[[int], NDArray[np.uint64]]:
    """Return a source of these words, which fails beyond them."""
    left = list(words)
    return lambda count: np.array([left.pop(0) for _ in range(count)], np.uint64)


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_is_of_this_kind_and_scale(kind: Kind) -> None:
    """By chi-square over fifty equal cells; a hundredth more or less, a shift, and the other kind are
    rejected."""
    drawn = rounded_noise(kind, 400_000, random_words(1)) * 2.0**-BITS

    def fits(values: NDArray[np.float64], law: object) -> bool:
        cells = np.bincount((law.cdf(values) * 50).astype(int), minlength=50)  # type: ignore[attr-defined]
        return bool(stats.chisquare(cells).pvalue > 1e-4)

    assert fits(drawn, LAWS[kind])
    assert not fits(drawn, LAWS[({*LAWS} - {kind}).pop()])
    assert not fits(drawn * 1.02, LAWS[kind]) and not fits(drawn + 0.02, LAWS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_the_lowest_bits_are_uniform_and_signs_alike(kind: Kind) -> None:
    """Every place of the grid is taken, on both sides; the mean is half a place below zero."""
    drawn = rounded_noise(kind, 200_000, random_words(2))
    for shift in (0, 8, 16):
        cells = np.bincount((drawn >> shift) & 63, minlength=64)
        assert stats.chisquare(cells).pvalue > 1e-4
    assert abs((drawn < 0).mean() - 0.5) < 0.005


@pytest.mark.parametrize("kind", KINDS)
def test_whole_parts_are_exact(kind: Kind) -> None:
    """The first bits of their distribution function, against 60 digits."""
    known = first_bits(_Whole(kind), 63)
    with mpmath.workdps(60):
        weight = {
            "gaussian": lambda k: mpmath.exp(-(mpmath.mpf(k) ** 2) / 2),
            "laplace": lambda k: mpmath.exp(-mpmath.mpf(k)),
        }[kind]
        total = mpmath.nsum(weight, [0, mpmath.inf])
        below, exact = mpmath.mpf(0), []
        for k in range(len(known)):
            below += weight(k) / total
            exact.append(int(mpmath.floor(mpmath.ldexp(below, 63))))
    assert known == exact


def probability(kind: Kind, whole: int, fraction: int, bits: int) -> mpmath.mpf:
    """Return the probability with which x = fraction / 2^bits is kept, in 100 digits."""
    x = mpmath.ldexp(mpmath.mpf(fraction), -bits)
    return mpmath.exp(-x if kind == "laplace" else -x * (2 * whole + x) / 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whole", [0, 1, 7])
def test_a_coin_that_does_not_decide_is_followed_by_others(kind: Kind, whole: int) -> None:
    """To either side of the probability by a part in 2^100, with as many words as that takes."""
    with mpmath.workdps(100):
        for fraction in (1 << 60, 1 << 63, (1 << 64) - 3):
            longer = (fraction << 64) + 12345
            threshold = int(mpmath.floor(mpmath.ldexp(probability(kind, whole, longer, 128), 128)))
            for apart, kept in ((-(1 << 28), True), (1 << 28, False)):
                coin = threshold + apart
                give = scripted([12345, coin & (2**64 - 1)])
                assert _is_accepted(kind, whole, fraction, coin >> 64, give) is kept
                with pytest.raises(IndexError):
                    give(1)


@pytest.mark.parametrize("kind", KINDS)
def test_float64_decides_only_what_it_can(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick way gives what exact comparison gives, and asks it where they are near."""
    words = random_words(3)(3 * 3000)
    quick = _proposed(kind, 3000, scripted(words.tolist()))
    monkeypatch.setattr(module, "UNSURE", 2.0)
    more = [*words.tolist(), *([7] * 50)]
    assert _proposed(kind, 3000, scripted(more)).tolist() == quick.tolist()
    monkeypatch.undo()
    first, fraction = 3 << 62, 1 << 62
    whole = 1
    with mpmath.workdps(60):
        near = int(mpmath.floor(mpmath.ldexp(probability(kind, whole, fraction, 64), 64)))
    asked = []
    monkeypatch.setattr(module, "_is_accepted", lambda *given: asked.append(given) or True)
    bits = first_bits(_Whole(kind), 63)
    first = 2 * (bits[0] + 5)
    for coin in (near, near + 9, near - 9):
        _proposed(kind, 1, scripted([first, fraction, coin]))
    assert len(asked) == 3 and asked[0][1] == whole


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_rounded_down(kind: Kind) -> None:
    """On both sides of zero: what was added to a whole number is what rounding leaves of the sum."""
    fraction = (5 << 32) + 77
    for first, expected in ((0, 5), (1, -6)):
        assert _proposed(kind, 1, scripted([first, fraction, 0])).tolist() == [expected]
