"""What codecs lose, by hand and by their laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meadow.compression.codecs import codec_of
from meadow.compression.numbers import BLOCK, BLOCKS_AT_ONCE, Integers
from meadow.compression.terms import UPLOADS
from meadow.errors import ProtocolError

SHAPES = [(40, 30), (7,), (3, 5, 2), (), (2500,)]
SIZE = 40 * 30 + 7 + 30 + 1 + 2500


def row_of(seed: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def there_and_back(kind: str, row: np.ndarray, seed: int = 5, shapes=None, **arguments: float):
    """Return what a row is taken for, and the bytes that it took."""
    said = {"fraction": 0.1, "rank": 2, **arguments}
    codec = codec_of(kind, [row.shape] if shapes is None else shapes, **said)
    parts = codec.encode(row, np.random.default_rng(seed))
    assert [(part.dtype, part.size) for part in parts] == list(codec.forms)
    sent = [np.frombuffer(part.tobytes(), part.dtype) for part in parts]
    return codec.decode(sent, np.random.default_rng(seed)), sum(part.nbytes for part in parts)


@pytest.mark.parametrize(
    ("kind", "bytes_a_value", "error"),
    [
        ("none", 4, 0),
        ("fp16", 2, 2e-3),
        ("bf16", 2, 2e-2),
        ("int8", 1 + 4 / 1024, 0.04),
        ("int4", 0.5 + 4 / 1024, 0.7),
    ],
)
def test_fewer_bits_a_value(kind, bytes_a_value, error):
    """A value takes as many bytes as is said, and is as near to itself as that allows."""
    row = row_of(1)
    found, size = there_and_back(kind, row, shapes=SHAPES)
    assert size == pytest.approx(bytes_a_value * SIZE, abs=4)
    assert np.abs(found - row).max() <= error
    assert found.dtype == np.float32


@pytest.mark.parametrize("size", [0, 5, BLOCK, BLOCKS_AT_ONCE * BLOCK + 1, 600_001])
def test_pieces_give_the_bits_of_the_whole(size: int) -> None:
    """Rounding piece by piece draws the random numbers, and gives the bits, of rounding all at once."""
    row = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    row[:BLOCK] = 0.0
    whole = np.zeros((-(-size // BLOCK), BLOCK), np.float32)
    whole.reshape(-1)[:size] = row
    scales = (np.abs(whole).max(axis=1, initial=0.0) / 127).astype(np.float32)
    whole /= np.where(scales > 0, scales, 1.0)[:, None]
    whole += np.random.default_rng(7).random(whole.shape, np.float32)
    levels = np.floor(whole).clip(-127, 127).astype(np.int8).reshape(-1)[:size]
    found = Integers(size, bits=8).encode(row, np.random.default_rng(7))
    assert [part.tobytes() for part in found] == [levels.tobytes(), scales.tobytes()]


@pytest.mark.parametrize(("kind", "levels"), [("int8", 127), ("int4", 7)])
def test_rounding_is_right_on_average(kind, levels):
    """The mean of many roundings is the value, within four standard errors."""
    row = np.full(2000, 0.3, np.float32)
    row[[0, 1024]] = 1.0
    found = np.stack([there_and_back(kind, row, seed=seed)[0][1:1024] for seed in range(20)])
    standard_error = 0.5 / levels / np.sqrt(found.size)
    assert abs(found.mean() - 0.3) < 4 * standard_error
    assert set(np.unique(np.round(found * levels))) == {
        np.floor(0.3 * levels),
        np.ceil(0.3 * levels),
    }


def test_top_k_by_hand():
    """The largest sizes stay, signs and all."""
    row = np.array([0.1, -5, 0, 2, -0.3, 4, 1, 0, 0, 0], np.float32)
    assert there_and_back("top_k", row, fraction=0.3)[0].tolist() == [0, -5, 0, 2, 0, 4, 0, 0, 0, 0]


@pytest.mark.parametrize("places", [[5, 5], [7, 3], [3, 10], [3, 2**32 - 1]])
def test_places_that_are_none_are_refused(places):
    """Places out of order, twice or beyond the row come from nobody honest."""
    codec = codec_of("top_k", [(10,)], fraction=0.2, rank=1)
    parts = [np.array(places, np.uint32), np.ones(2, np.float32)]
    with pytest.raises(ProtocolError, match="must ascend"):
        codec.decode(parts, np.random.default_rng(0))


def test_random_k_sends_no_places():
    """Both sides draw the same places from a seed; another seed draws others."""
    row = row_of(2)
    found, size = there_and_back("random_k", row, fraction=0.25)
    kept = np.flatnonzero(found)
    assert size == 4 * len(kept) == 4 * -(-SIZE // 4)
    assert np.array_equal(found[kept], row[kept])
    other = np.flatnonzero(there_and_back("random_k", row, seed=6, fraction=0.25)[0])
    assert not np.array_equal(kept, other)


def test_low_rank_finds_a_matrix_of_that_rank():
    """A matrix of rank 2 comes back whole, the rest as it is, and in fewer bytes."""
    generator = np.random.default_rng(3)
    matrix = generator.standard_normal((40, 2)) @ generator.standard_normal((2, 30))
    row = np.concatenate([matrix.reshape(-1), row_of(4, SIZE - 1200)]).astype(np.float32)
    found, size = there_and_back("low_rank", row, shapes=SHAPES)
    small = slice(1207, 1237)  # the 3 x 10 matrix has rank 3
    np.testing.assert_allclose(np.delete(found, small), np.delete(row, small), atol=1e-4)
    assert 0 < np.linalg.norm((found - row)[small]) < np.linalg.norm(row[small])
    # the 40 x 30 matrix as 2 (40 + 30) values, and 3 x 10 as 2 (3 + 10)
    assert size == 4 * (SIZE - 1200 + 140 - 30 + 26)


@settings(max_examples=30, deadline=None)
@given(size=st.integers(0, 2100), seed=st.integers(0, 2**32), kind=st.sampled_from(UPLOADS))
def test_any_size_and_zeros_survive(size, seed, kind):
    """No size is a special case, and a change of nothing stays nothing."""
    found, _ = there_and_back(kind, row_of(seed, size))
    assert found.shape == (size,) and np.isfinite(found).all()
    assert not there_and_back(kind, np.zeros(size, np.float32))[0].any()


@pytest.mark.parametrize("kind", ["top_k", "random_k", "low_rank"])
def test_feedback_loses_nothing_in_the_end(kind):
    """With what is lost added to the next row, the sum of what arrives follows the sum of rows."""
    codec = codec_of(kind, SHAPES, fraction=0.1, rank=2)
    assert codec.feeds_back
    row, residual, arrived = row_of(6), np.zeros(SIZE, np.float32), np.zeros(SIZE)
    for step in range(60):
        whole = row + residual
        parts = codec.encode(whole, np.random.default_rng(step))
        found = codec.decode(parts, np.random.default_rng(step))
        residual, arrived = whole - found, arrived + found
    np.testing.assert_allclose(arrived + residual, 60 * row, rtol=1e-3, atol=1e-2)
    assert np.linalg.norm(residual) < 30 * np.linalg.norm(row)
