"""Global generators inside and outside of `seeded`."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from meadow.randomness import seeded


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


def test_large_seeds_are_taken() -> None:
    """Derived seeds have 63 bits; NumPy's generator takes 32."""
    with seeded(2**63 - 1):
        assert draw()
