"""`meadow plan`: what a person and a program read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Meadow

PLAN = ("plan", "my_app", "--clients", 50, "--cohort", 10, "--link", "20Mbit/s", "--rtt", "100ms")


def test_a_program_reads_the_round(meadow: Meadow, app: Path) -> None:
    """The cohort's bytes are those of its clients, and the round's those of both ways."""
    said = meadow(*PLAN, "--training-s", 60, "--format", "json")
    assert (said.code, said.err) == (0, "")
    rows = {row["what"]: row for row in json.loads(said.out)}
    down, up, whole = rows["download"], rows["upload"], rows["round"]
    assert down["client_bytes"] == up["client_bytes"] > 0
    assert whole["all_bytes"] == 10 * whole["client_bytes"] == 20 * down["client_bytes"]
    assert whole["s"] == pytest.approx(down["s"] + 60 + up["s"])
    assert (
        rows["memory of a client"]["client_bytes"] > 1e8 < rows["memory of the server"]["all_bytes"]
    )
    assert rows["the server's disk, at most"]["all_bytes"] == 13 * down["client_bytes"] + 8_000_000
    assert rows["a client's disk, at most"]["client_bytes"] == 6 * down["client_bytes"] + 8_000_000


def test_a_person_reads_it(meadow: Meadow, app: Path) -> None:
    """A sentence and a table; int8 makes the upload smaller."""
    said = meadow(*PLAN, "--set", "compression.upload=int8")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == "my_app: a round of 10 of 50 clients"
    assert [line.split()[0] for line in lines[3:7]] == ["download", "training", "upload", "round"]


def test_what_it_does_not_know_it_says(meadow: Meadow, app: Path) -> None:
    """Clients of SCAFFOLD keep more than was counted: bytes and seconds are known, the memory is not."""
    said = meadow("plan", "my_app", "--set", "strategy.name=scaffold")
    assert said.code == 0 and "memory such a round takes is not known" in said.out
    assert "memory of a client" not in said.out


@pytest.mark.parametrize("link", ["20", "0Mbit/s", "20MB", "fast"])
def test_a_line_that_is_none(meadow: Meadow, app: Path, link: str) -> None:
    """One line names the option, its units and what was given."""
    said = meadow("plan", "my_app", "--link", link)
    assert said.code == 2 and "--link must be a number above 0 with kbit/s or" in said.err
    assert repr(link) in said.err
