"""Noise by inversion has the probabilities of its law, to the last bit, also where bits are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from meadow.privacy.dp.mechanisms.discrete_gaussian import _DiscreteGaussian, discrete_gaussian
from meadow.privacy.dp.mechanisms.inversion import Law, first_bits
from meadow.privacy.dp.mechanisms.skellam import _Skellam, skellam

LAWS: dict[str, Callable[[float], Law]] = {"skellam": _Skellam, "gaussian": _DiscreteGaussian}
DRAW = {"skellam": skellam, "gaussian": discrete_gaussian}
DIGITS = 120


def distribution(name: str, variance: float, count: int) -> list[mpmath.mpf]:
    """Return the probabilities of magnitudes up to 0, 1, ..., in 120 digits."""
    with mpmath.workdps(DIGITS):
        v = mpmath.mpf(variance)
        if name == "skellam":
            single = [mpmath.besseli(k, v) * mpmath.exp(-v) for k in range(count)]
            total = mpmath.mpf(1)
        else:
            single = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * v)) for k in range(count)]
            total = mpmath.jtheta(3, 0, mpmath.exp(-1 / (2 * v)))
        found, below = [], mpmath.mpf(0)
        for k, each in enumerate(single):
            below += each * (2 if k else 1) / total
            found.append(below)
        return found


def bits_of(probability: mpmath.mpf, bits: int) -> int:
    """Return a probability in 2^-bits, rounded down."""
    with mpmath.workdps(DIGITS):
        return int(mpmath.floor(mpmath.ldexp(probability, bits)))


def scripted(words: Sequence[int]) -> Callable[[int], NDArray[np.uint64]]:
    """Return a source of these words, which fails beyond them."""
    left = list(words)

    def give(count: int) -> NDArray[np.uint64]:
        taken = [left.pop(0) for _ in range(count)]
        return np.array(taken, np.uint64)

    return give


def split(number: int, words: int) -> list[int]:
    """Return the words of a real number: 63 bits and a sign, then 64 bits each; the sign is plus."""
    parts = [number >> 64 * place & (2**64 - 1) for place in range(words - 1)]
    return [number >> 64 * (words - 1) << 1, *reversed(parts)]


@pytest.mark.parametrize(
    ("variance", "bits"),
    [(0.01, 63), (0.3, 63), (5.0, 63), (5.0, 191), (123.456, 63), (123.456, 191), (4_000.0, 63)],
)
@pytest.mark.parametrize("name", LAWS)
def test_every_bit_of_the_distribution_is_right(name: str, variance: float, bits: int) -> None:
    """Down to the tail, where what is left is less than the last bit."""
    known = first_bits(LAWS[name](variance), bits)
    exact = [bits_of(each, bits) for each in distribution(name, variance, len(known))]
    assert known == exact
    assert known[-1] == 2**bits - 1 and (len(known) == 1 or known[-2] < known[-1])


@pytest.mark.parametrize("name", LAWS)
def test_a_word_that_does_not_decide_is_followed_by_others(name: str) -> None:
    """A unit of the 127th bit to either side of a probability decides; the same bits do not, and the
    192nd does."""
    law, exact = LAWS[name](5.0), distribution(name, 5.0, 12)
    assert first_bits(law, 63)[4] == bits_of(exact[4], 63)
    for place in (0, 4, 9):
        second, third = bits_of(exact[place], 127), bits_of(exact[place], 191)
        for number, words, magnitude in (
            (second - 1, 2, place),
            (second + 1, 2, place + 1),
            (third - 1, 3, place),
            (third + 1, 3, place + 1),
        ):
            give = scripted(split(number, words))
            assert DRAW[name](5.0, 1, give).tolist() == [magnitude], (place, number)
            with pytest.raises(IndexError):
                give(1)


@pytest.mark.parametrize("name", LAWS)
def test_the_tail_has_no_end(name: str) -> None:
    """What lies beyond the table is drawn with more bits."""
    exact = distribution(name, 5.0, 60)
    last = len(first_bits(LAWS[name](5.0), 63)) - 1
    for magnitude in (last, last + 1, last + 4):
        number = bits_of(exact[magnitude], 127)
        assert number >> 64 == 2**63 - 1
        words = split(number - 1, 2)
        assert DRAW[name](5.0, 1, scripted(words)).tolist() == [magnitude]
        words[0] |= 1
        assert DRAW[name](5.0, 1, scripted(words)).tolist() == [-magnitude]


@pytest.mark.parametrize("name", LAWS)
def test_signs_and_blocks(name: str) -> None:
    """The lowest bit is the sign; what is next to a probability in the table is decided at once."""
    table = first_bits(LAWS[name](4_000.0), 63)
    words = [
        2 * (each + side) + sign for each in table[:500] for side in (-1, 1) for sign in (0, 1)
    ]
    words = (words * (20_000 // len(words) + 1))[:20_000]
    drawn = DRAW[name](4_000.0, len(words), scripted(words))
    bits = np.array(words, np.uint64)
    below = np.searchsorted(np.array(table, np.uint64), bits >> np.uint64(1), "right")
    assert (np.abs(drawn) == below).all()
    assert (np.sign(drawn) == np.sign(below) * (1 - 2 * (bits & np.uint64(1)).astype(int))).all()


def test_the_widest_noise_is_laid_out() -> None:
    """Probabilities decrease from the most likely to the least, in both laws."""
    for law in (_Skellam(1e6), _DiscreteGaussian(1e6)):
        table = np.array(first_bits(law, 63), np.uint64)
        single = np.diff(table).astype(np.float64) / 2**64
        density = np.exp(-(np.arange(1, len(table)) ** 2) / 2e6) / (2e6 * np.pi) ** 0.5
        near = slice(0, 4000)
        np.testing.assert_allclose(single[near], density[near], rtol=1e-4)
