"""Seeds: one number, many independent streams."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meadow.randomness.seeds import derive, epoch_order, epoch_orders, spread, spread_one

PARTS = st.lists(st.one_of(st.integers(), st.text()), max_size=4)


def test_a_known_value_never_changes() -> None:
    """A stored run can be continued by any later version: these numbers are part of the format."""
    assert derive(0) == 5002178623122376926
    assert derive(7, 3, 12, "batches") == 1400541463519339786


@given(seed=st.integers(), parts=PARTS)
def test_a_seed_fits_every_generator(seed: int, parts: list[int | str]) -> None:
    """63 bits: torch and NumPy take it as it is."""
    assert 0 <= derive(seed, *parts) < 2**63


@given(seed=st.integers(), one=PARTS, other=PARTS)
def test_different_names_give_different_streams(
    seed: int, one: list[int | str], other: list[int | str]
) -> None:
    """No two lists of parts run together into the same text."""
    assert (derive(seed, *one) == derive(seed, *other)) == (one == other)


def test_numbers_and_texts_are_told_apart() -> None:
    """The number 1 and the text "1" name different streams."""
    assert derive(0, 1) != derive(0, "1")
    assert derive(0, "ab", "c") != derive(0, "a", "bc")


WORDS = st.integers(min_value=0, max_value=2**64 - 1)


@given(seed=WORDS, ids=st.lists(WORDS, min_size=1, max_size=5))
def test_one_client_is_given_what_many_at_once_are(seed: int, ids: list[int]) -> None:
    """A client alone and a vectorized cohort draw the same streams."""
    together = spread(seed, np.array(ids, np.uint64))
    assert [spread_one(seed, number) for number in ids] == together.tolist()


@given(
    seeds=st.lists(WORDS, min_size=1, max_size=4),
    counts=st.lists(st.integers(min_value=1, max_value=5000), min_size=4, max_size=4),
    epoch=st.integers(min_value=0, max_value=3),
)
def test_one_client_goes_through_its_samples_as_in_a_cohort(
    seeds: list[int], counts: list[int], epoch: int
) -> None:
    """Whatever the others' numbers of samples are."""
    counts = counts[: len(seeds)]
    together = epoch_orders(np.array(seeds, np.uint64), np.array(counts), [epoch])[0]
    for row, seed, count in zip(together, seeds, counts, strict=True):
        assert np.array_equal(epoch_order(seed, count, epoch), row[:count])
