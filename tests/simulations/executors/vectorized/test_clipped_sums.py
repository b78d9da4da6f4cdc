"""A cohort's clipped deltas, added up: compared with exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from meadow.privacy.dp.mechanisms.clipping import Clipping, ClippingKind
from meadow.simulations.executors.vectorized import clipped_sums
from meadow.simulations.executors.vectorized.clipped_sums import ClippedSums

Rows = dict[str, torch.Tensor]
ROUNDING = 1e-12
"""A float64 sum of a few values is so close, relative to the clip norm."""
SIZES = {"weight": (3, 2), "bias": (3,)}
OWNERS = {"weight": "weight", "bias": "bias", "tied.bias": "bias"}
"""A param under two names counts under each, as it is sent."""


class Cohort:
    """What training made of clients whose deltas are these rows."""

    def __init__(self, rows: Rows, together: int) -> None:
        self.rows, self.together = rows, together
        self.means: dict[str, Any] = {}

    def each(self, low: int, high: int) -> Rows:
        assert high - low <= self.together
        return {name: values[low:high] for name, values in self.rows.items()}


def added(
    rows: Rows, good: Sequence[int], clipping: Clipping, together: int = 8
) -> tuple[Rows, list[float]]:
    """Return the sums, and who was within; with so many clients at once."""
    trained = {name: torch.zeros(shape) for name, shape in SIZES.items()}
    stacked: Any = SimpleNamespace(trained=trained, buffers={}, owners=OWNERS, probe=torch.zeros(1))
    values = sum(each.numel() for each in trained.values())
    sums: Rows = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clipped_sums, "BLOCK_BYTES", 8 * values * together)
        cohort: Any = Cohort(rows, together)
        within = ClippedSums(clipping, stacked, sums).add(cohort, good)
    return sums, within.tolist()


def exact_square(*tensors: torch.Tensor) -> Fraction:
    """Return the sum of the squares of all values, without rounding."""
    values = [value for each in tensors for value in each.flatten().tolist()]
    return sum((Fraction(value) ** 2 for value in values), start=Fraction(0))


def sent_square(values: Rows) -> Fraction:
    """Return the square of the norm of what a client sends."""
    return exact_square(*(values[owner] for owner in OWNERS.values()))


def root(square: Fraction) -> float:
    """Return a square root, correct to 15 digits whatever its size."""
    if not square:
        return 0.0
    return float(Fraction(math.isqrt(int(square * 2**400)), 2**200))


@st.composite
def cohorts(draw: st.DrawFn) -> Rows:
    """Deltas of some clients, whose norms are far apart, and so are those of their tensors."""
    clients = draw(st.integers(1, 7))
    powers = {name: 10.0 ** draw(st.integers(-3, 3)) for name in SIZES}
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    scales = np.array([10.0 ** draw(st.integers(-6, 6)) for _ in range(clients)])
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    made = {name: random.standard_normal((clients, *shape)) for name, shape in SIZES.items()}
    return {
        name: torch.from_numpy((each.T * scales * powers[name]).T.astype(dtype))
        for name, each in made.items()
    }


@given(
    cohorts(),
    st.sampled_from(["fixed", "per_layer", "adaptive"]),
    st.floats(1e-4, 1e4),
    st.integers(1, 3),
    st.data(),
)
def test_a_sum_is_that_of_the_clipped_deltas(
    rows: Rows, kind: ClippingKind, norm: float, together: int, data: st.DataObject
) -> None:
    """Each within the clip norm by itself, and unchanged if it is so without clipping."""
    clients = len(rows["bias"])
    good = sorted(data.draw(st.sets(st.integers(0, clients - 1), min_size=1)))
    clipping = Clipping(kind=kind, clip_norm=norm)
    sums, within = added(rows, good, clipping, together)
    expected = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SIZES.items()}
    limit = norm / math.sqrt(len(OWNERS)) if kind == "per_layer" else norm
    for client, was_within in zip(good, within, strict=True):
        own = {name: each[client].double() for name, each in rows.items()}
        norms = {name: root(exact_square(each)) for name, each in own.items()}
        if kind != "per_layer":
            norms = dict.fromkeys(norms, root(sent_square(own)))
        assume(all(abs(each / limit - 1) > 1e-9 for each in norms.values()))
        assert was_within == all(each <= limit for each in norms.values())
        for name, each in own.items():
            factor = 1.0 if norms[name] <= limit else limit * (1 - 2.0**-22) / norms[name]
            expected[name] += each * factor
        alone, _ = added(rows, [client], clipping)
        assert sent_square(alone) <= Fraction(norm * (1 + ROUNDING)) ** 2
        if was_within:
            assert all(torch.equal(alone[name], each) for name, each in own.items())
        else:
            assert sent_square(alone) <= Fraction(norm) ** 2
    for name, each in expected.items():
        assert sums[name].dtype == torch.float64
        torch.testing.assert_close(sums[name], each, rtol=0, atol=len(good) * norm * ROUNDING)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e200], ids=str)
@pytest.mark.parametrize("together", [1, 2, 8])
def test_a_delta_whose_norm_is_not_finite_adds_nothing(wrong: float, together: int) -> None:
    """The others count."""
    rows = {name: torch.ones(5, *shape, dtype=torch.float64) for name, shape in SIZES.items()}
    rows["weight"][3, 0, 1] = wrong
    sums, within = added(rows, [0, 2, 3, 4], Clipping(clip_norm=100.0), together)
    assert within[:2] == [1.0, 1.0] and math.isnan(within[2]) and within[3] == 1.0
    assert all(bool((each == 3.0).all()) for each in sums.values())
    alone, within = added(rows, [3], Clipping(clip_norm=100.0), together)
    assert math.isnan(within[0]) and not any(each.any() for each in alone.values())
    assert added(rows, [], Clipping(clip_norm=1.0)) == ({}, [])
