"""docs/differential-privacy.md says of whom one has to trust: each cell names what holds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meadow.privacy.dp.noise_terms import SOURCES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "differential-privacy.md").read_text()
HEAD = TEXT[: TEXT.index("## Switching it on")]


def table(first: str) -> list[list[str]]:
    """Return the cells of the table whose head begins with these words, below its head."""
    lines = HEAD[HEAD.index(first) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def held_by() -> dict[int, str]:
    """Return what holds a cell, by the number that it has."""
    return {int(number): what for number, what in table("| | tested by |")}


def test_every_cell_says_what_holds_it() -> None:
    """By a number of the second table, all of whose rows are used."""
    used: set[int] = set()
    rows = table("| trusted with |")
    assert len(rows) >= 8
    for who, *cells in rows:
        assert len(cells) == 4, who
        for cell in cells:
            found = {int(number) for number in re.findall(r"\[(\d+)\]", cell)}
            assert found, f"{who}: {cell}"
            used |= found
    assert used == held_by().keys()


@pytest.mark.parametrize("number", held_by())
def test_what_holds_a_cell_is_there(number: int) -> None:
    """A test that exists, or a sentence why there is none."""
    what = held_by()[number]
    named = re.findall(r"tests/[\w/]+\.py", what)
    assert all((ROOT / each).is_file() for each in named)
    assert any("def test_" in (ROOT / each).read_text() for each in named) or "no test: " in what


def test_every_way_to_add_noise_has_a_column() -> None:
    """Or is named with another one further down, as the two distributed ones."""
    head = HEAD[HEAD.index("| trusted with |") :].splitlines()[0]
    for source in SOURCES:
        assert f'"{source.removesuffix("_gaussian")}' in head or f'"{source}"' in head
