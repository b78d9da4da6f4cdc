"""Params of few bits: no rounding lets a client move a sum by more than the clip."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from meadow.flower import MemoryTensor
from meadow.privacy.dp.clipping import Clipping, ClippingKind
from meadow.privacy.dp.local import _bounded
from meadow.privacy.dp.mechanism import PrivateMean
from meadow.privacy.entropy import system_entropy
from meadow.strategies.algorithm import Update

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64]


def client_of(dtype: type, seed: int) -> tuple[dict[str, np.ndarray], dict[str, MemoryTensor]]:
    """Return params, and what a client makes of them: each value moves by a step of its dtype, or
    by half of one, so that rounding doubles what clipping leaves."""
    random = np.random.default_rng(seed)
    before = {name: random.uniform(0.5, 2.0, 300).astype(dtype) for name in "ab"}
    step = 0.26 if dtype is ml_dtypes.float8_e4m3fn else float(2.0**-7)
    if dtype in (np.float32, np.complex64):
        step = 2.0**-22
    after = {name: (each.astype(np.float64) + step).astype(dtype) for name, each in before.items()}
    return before, {name: MemoryTensor(each) for name, each in after.items()}


def norm_of(changes: list[np.ndarray]) -> float:
    """Return the L2 norm of several rows together."""
    return float(np.sqrt(sum(np.square(np.abs(each)).sum() for each in changes)))


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["fixed", "per_layer"])
@pytest.mark.parametrize("share", [0.3, 0.51, 0.75, 0.99])
def test_the_sum_moves_by_the_clip_at_most(dtype: type, kind: ClippingKind, share: float) -> None:
    """On the server, in what it adds up; and on a client, in what it adds noise to."""
    before, after = client_of(dtype, seed=1)
    wide = {name: each.astype(np.complex128) for name, each in before.items()}
    whole = norm_of([after[name].numpy().astype(np.complex128) - wide[name] for name in before])
    clip = whole * share
    clipping = Clipping(kind=kind, norm=clip)
    mean = PrivateMean(cohort=1.0, clipping=clipping, noise_multiplier=1.0, entropy=system_entropy)
    accumulator = mean.fold(mean.zero(before), [Update(client=1, params=after, weight=1.0)])
    (update,) = accumulator.changes.waiting
    added = [update.params[name].numpy().astype(np.complex128) - wide[name] for name in before]
    assert 0.9 * clip < norm_of(added) <= clip
    noised = _bounded(before, after, clipping, laplace=False)
    assert 0.9 * clip < norm_of(list(noised.values())) <= clip
    one = sum(
        float(np.abs(each).sum())
        for each in _bounded(before, after, clipping, laplace=True).values()
    )
    assert one <= clip * (1 + 1e-12)
