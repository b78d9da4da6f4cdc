"""Feature skew: noise of a site's own strength, the same whoever asks for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import meadow
from meadow.errors import DataError
from meadow.partitioning.partition import Partition

ZEROS = np.zeros((400, 50), dtype=np.float32)


def site(index: int, *, kind: Any = "feature", seed: int = 1) -> meadow.Site:
    rule = Partition(kind=kind, noise_variance=0.5)
    return meadow.Site(index=index, count=10, partition=rule, seed=seed)


@pytest.mark.parametrize("index", range(10))
def test_the_variance_grows_with_the_index(index: int) -> None:
    """Site i of n has noise of variance noise_variance * i / n: within 5 % of 20,000 values'."""
    noise = site(index).shifted(ZEROS)
    expected = 0.5 * index / 10
    assert abs(noise.var() - expected) <= 0.05 * expected
    assert abs(noise.mean()) < 0.02


def test_seed_and_site_decide_the_noise() -> None:
    """The same site has the same noise again; another site or seed has another."""
    first = site(4).shifted(ZEROS)
    assert (first == site(4).shifted(ZEROS)).all()
    assert not np.allclose(first / 4**0.5, site(5).shifted(ZEROS) / 5**0.5)
    assert not np.allclose(first, site(4, seed=2).shifted(ZEROS))
    assert not ZEROS.any()


def test_tensors_are_shifted_as_arrays_are() -> None:
    """NumPy and torch give the same numbers, in the dtype that was given."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tensor = site(4).shifted(torch.zeros(400, 50, dtype=dtype))
        assert tensor.dtype == dtype
        assert torch.equal(tensor, torch.from_numpy(site(4).shifted(ZEROS)).to(dtype))
    assert site(4).shifted(ZEROS.astype(np.float64)).dtype == np.float64


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "natural"])
def test_other_partitions_leave_inputs_alone(kind: str) -> None:
    """A task may always call it; without feature skew nothing happens, to any type."""
    inputs = np.arange(5)
    assert site(4, kind=kind).shifted(inputs) is inputs


def test_whole_numbers_take_no_noise() -> None:
    """Bytes of an image would be rounded: the remedy is named."""
    for inputs in (np.zeros(3, dtype=np.uint8), torch.zeros(3, dtype=torch.uint8)):
        with pytest.raises(DataError, match=r"got (torch\.)?uint8; convert them first"):
            site(4).shifted(inputs)  # type: ignore[type-var]
