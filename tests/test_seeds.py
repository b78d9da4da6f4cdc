"""Seeds: one number, many independent streams."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meadow.seeds import derive

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
