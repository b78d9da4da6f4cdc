"""Global generators inside and outside of `seeded`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from meadow.randomness.seeded import generators_now, seeded


def draw() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


def test_inside_the_seed_decides() -> None:
    """What ran before does not matter; another seed gives other numbers."""
    with seeded(1):
        first = draw()
    draw()
    with seeded(1):
        assert draw() == first
    with seeded(2):
        assert all(a != b for a, b in zip(draw(), first, strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_outside_nothing_changes(fails: bool) -> None:
    """The numbers go on as if the block had not been, also if it raised."""
    with seeded(5):
        expected = [draw(), draw()]
    with seeded(5):
        got = [draw()]
        try:
            with seeded(6):
                draw()
                if fails:
                    raise ValueError
        except ValueError:
            pass
        got.append(draw())
    assert got == expected


def test_blocks_inside_another_only_seed() -> None:
    """They give the numbers of a block alone, whatever the one before drew, and the outer one restores."""

    def draws() -> list[object]:
        return [
            *draw(),
            float(np.random.standard_normal()),
            random.gauss(0, 1),
            torch.randn(1).item(),
        ]

    alone = []
    for seed in (4, 5, 4):
        with seeded(seed):
            alone.append(draws())
    with seeded(9):
        np.random.standard_normal(), random.gauss(0, 1)
        before, expected = draws(), [draws(), draws()]
    with seeded(9):
        np.random.standard_normal(), random.gauss(0, 1)
        assert draws() == before
        with seeded(0):
            for seed, numbers in zip((4, 5, 4), alone, strict=True):
                with seeded(seed, inside=True):
                    assert draws() == numbers
                    draw(), np.random.standard_normal(), random.gauss(0, 1)
        assert [draws(), draws()] == expected


def test_large_seeds_are_taken() -> None:
    """Derived seeds have 63 bits; NumPy's generator takes 32."""
    with seeded(2**63 - 1):
        assert draw()


@pytest.mark.parametrize("inside", range(3))
@pytest.mark.parametrize("before", range(5))
def test_normal_numbers_go_on_in_pairs(before: int, inside: int) -> None:
    """Python and NumPy make two normal numbers at once, and keep the second: a block in between
    changes neither it nor those after it, wherever in their words the generators are."""

    def normals() -> list[float]:
        return [float(np.random.standard_normal()), random.gauss(0, 1)]

    with seeded(7):
        np.random.random_sample(before * 155)  # 310 words: some blocks begin where words are made
        first = [normals() for _ in range(before)]
        expected = first + [normals() for _ in range(4)]
    with seeded(7):
        np.random.random_sample(before * 155)
        first = [normals() for _ in range(before)]
        with seeded(8):
            np.random.random_sample(700 * (before % 2))
            assert len({*map(tuple, [normals() for _ in range(inside)])}) == inside
        assert first + [normals() for _ in range(4)] == expected


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        lambda: random.gauss(0, 1),
        np.random.random_sample,
        np.random.standard_normal,
    ],
)
@pytest.mark.parametrize("kind", [None, np.random.MT19937, np.random.PCG64, np.random.SFC64])
def test_every_draw_is_seen(draw: Callable[[], float], kind: Any) -> None:
    """Also one that takes no words: the second normal number of a pair. Looking changes nothing."""
    usual = np.random.get_bit_generator()
    try:
        if kind is not None:
            np.random.set_bit_generator(kind(3))
        expected = None
        for looks in (0, 1):
            with seeded(5):
                drawn = []
                for _ in range(5):
                    before = generators_now()
                    for _ in range(looks):
                        assert generators_now() == before
                    drawn.append(draw())
                    assert generators_now() != before
            if kind is None:
                assert expected in (None, drawn)
            expected = drawn
    finally:
        np.random.set_bit_generator(usual)


def test_another_generator_of_numpys_is_left_as_it_was() -> None:
    """Somebody may have given NumPy a global generator of another kind."""
    usual = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.MT19937(3))
        for kind in (np.random.MT19937, np.random.PCG64):
            np.random.set_bit_generator(kind(3))
            expected = np.random.random_sample(3).tolist()
            np.random.set_bit_generator(kind(3))
            got = [float(np.random.random_sample())]
            with seeded(4):
                np.random.random_sample(9)
            got += np.random.random_sample(2).tolist()
            assert got == expected
    finally:
        np.random.set_bit_generator(usual)
