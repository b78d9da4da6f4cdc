"""Fixed point: exact where it can be, right on average elsewhere, and never too large."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.errors import ConfigError, UpdateError
from meadow.privacy.secagg.protocol.encoding import LENGTH_MAX, VALUE_BOUND_MAX, Encoding
from meadow.privacy.secagg.protocol.masks import BLOCK


def encoding(**fields) -> Encoding:
    return Encoding(**{"length": 4, "value_bits": 8, "value_bound": 127.0, **fields})


def test_numbers_by_hand(kit):
    """With clip 127 and 8 bits, one is one; the weight multiplies, and comes last."""
    vector = np.array([1.0, -2.0, 200.0, -200.0], np.float32)
    numbers = encoding(weight_max=5).encode(vector, 5, entropy=kit.replayed(0))
    assert numbers.view(np.int32).tolist() == [5, -10, 635, -635, 5]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("length", [1, 7, BLOCK + 3])
def test_every_dtype_and_length(kit, dtype, length):
    """Narrow dtypes are widened before they are multiplied."""
    vector = (np.arange(length) % 100 - 50).astype(dtype)
    scheme = encoding(length=length, weight_max=3)
    total = scheme.encode(vector, 3, entropy=kit.replayed(0))
    values, weight = scheme.decode(total)
    np.testing.assert_array_equal(values, 3 * vector.astype(np.float64))
    assert weight == 3


@given(st.integers(8, 32), st.data())
def test_sums_modulo_a_power_are_exact(kit, bits, data):
    """As long as the plan has room, wrapping around loses nothing, whatever the signs."""
    value_bits = data.draw(st.integers(2, min(bits - 2, 24)))
    clients = data.draw(st.integers(1, min(40, (1 << (bits - value_bits)) - 1)))
    bound = (1 << (value_bits - 1)) - 1
    scheme = encoding(bits=bits, value_bits=value_bits, value_bound=float(bound))
    scheme.require_room(clients)
    extremes = data.draw(st.lists(st.sampled_from([-bound, 0, bound]), min_size=4, max_size=4))
    vector = np.array(extremes, np.float32)
    total = np.zeros(5, np.uint32)
    for number in range(clients):
        total += scheme.encode(vector, 1, entropy=kit.replayed(number))
    values, weight = scheme.decode(total & np.uint32((1 << bits) - 1))
    np.testing.assert_array_equal(values, clients * vector.astype(np.float64))
    assert weight == clients


def test_rounding_is_right_on_average(kit):
    """Of 100,000 values of 0.3, about 30% become one; a rounding to the nearest gives none."""
    scheme = encoding(length=100_000)
    numbers = scheme.encode(np.full(100_000, 0.3), 1, entropy=kit.replayed(1))[:-1]
    assert set(np.unique(numbers)) == {0, 1}
    assert abs(numbers.mean() - 0.3) < 5 * np.sqrt(0.21 / 100_000)
    negative = scheme.encode(np.full(100_000, -0.3), 1, entropy=kit.replayed(1))[:-1]
    assert abs(negative.view(np.int32).mean() + 0.3) < 5 * np.sqrt(0.21 / 100_000)


def test_rounding_differs_with_the_entropy(kit):
    """And is the same for the same."""
    scheme, vector = encoding(length=1000), np.full(1000, 0.5)
    first, again, other = (scheme.encode(vector, 1, entropy=kit.replayed(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.4


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, BLOCK + 1])
def test_what_is_not_finite_is_refused(kit, value, place):
    """Wherever it is: it would become a number that looks like any other."""
    vector = np.zeros(BLOCK + 2, np.float32)
    vector[place] = value
    with pytest.raises(UpdateError, match="not all finite"):
        encoding(length=BLOCK + 2).encode(vector, 1, entropy=kit.replayed(0))


@pytest.mark.parametrize(
    ("vector", "weight", "text"),
    [
        (np.zeros(5), 1, r"shape \(4,\), got \(5,\)"),
        (np.zeros((2, 2)), 1, "shape"),
        (np.zeros(4, np.int32), 1, "floating-point, got int32"),
        (np.zeros(4, complex), 1, "floating-point"),
        (np.zeros(4), 2, r"in \[0, 1\], got 2"),
        (np.zeros(4), -1, "got -1"),
        (np.zeros(4), 1.0, "got 1.0"),
        (np.zeros(4), True, "got True"),
    ],
)
def test_vectors_and_weights_that_do_not_fit(kit, vector, weight, text):
    """The text says what would."""
    with pytest.raises(UpdateError, match=text):
        encoding().encode(vector, weight, entropy=kit.replayed(0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"length": LENGTH_MAX + 1},
        {"length": 0},
        {"value_bound": 2 * VALUE_BOUND_MAX},
        {"value_bound": 1e-31},
    ],
)
def test_an_encoding_that_cannot_be(wrong):
    """It is refused before a vector is made."""
    with pytest.raises(ConfigError):
        encoding(**wrong)


@pytest.mark.parametrize(("clients", "fits"), [(31, True), (32, False), (33, False)])
def test_a_sum_that_could_overflow_is_refused(clients, fits):
    """2^(32 - 16) = 65,536 must exceed clients * weight_max, here 2,048 each."""
    scheme = Encoding(length=1, bits=32, value_bits=16, weight_max=2048)
    if fits:
        scheme.require_room(clients)
    else:
        with pytest.raises(ConfigError, match="lower weight_max to"):
            scheme.require_room(clients)


@pytest.mark.parametrize(
    "fields",
    [
        {"length": 0},
        {"length": 1 << 31},
        {"length": 1.0},
        {"bits": 33},
        {"bits": 7},
        {"value_bits": 1},
        {"value_bits": 25},
        {"weight_max": 0},
        {"value_bound": 0.0},
        {"value_bound": np.nan},
        {"value_bound": np.inf},
        {"value_bound": "1"},
    ],
)
def test_impossible_encodings(fields):
    """The text names the field."""
    with pytest.raises(ConfigError, match=next(iter(fields))):
        encoding(**fields)
