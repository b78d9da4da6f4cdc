"""Bit packing against whole numbers of Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.privacy.secagg.protocol.packing import pack, packed_bytes, unpack


@given(st.integers(1, 32), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200))
def test_packing_is_concatenation_of_bits(bits, numbers):
    """The packed bytes are one long number, the first value at its low end."""
    long = sum((number % (1 << bits)) << (bits * place) for place, number in enumerate(numbers))
    data = pack(np.array(numbers, np.uint32), bits)
    assert data == long.to_bytes(packed_bytes(len(numbers), bits), "little")
    expected = [number % (1 << bits) for number in numbers]
    assert unpack(data, len(numbers), bits).tolist() == expected


@pytest.mark.parametrize("bits", [8, 13, 16, 20, 31, 32])
def test_a_long_vector_survives(bits):
    """A length that nothing divides."""
    values = np.random.default_rng(bits).integers(0, 1 << bits, 100_003).astype(np.uint32)
    data = pack(values, bits)
    assert len(data) == -(-100_003 * bits // 8)
    np.testing.assert_array_equal(unpack(memoryview(data), len(values), bits), values)
